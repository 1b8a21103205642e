"""At equal epsilon: how far the threshold is from the one without noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_order, make_report

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import decode_summaries
from fedbalancer.client.summary import Histogram, LossStatistics, SecAggHistogram
from fedbalancer.core.types import FloatArray
from fedbalancer.privacy import noise_for
from fedbalancer.server.threshold import loss_threshold

pytest.importorskip("dp_accounting")

RATIO, REPEATS, PARTICIPATIONS = 0.5, 20, 140
FOUR = math.sqrt(25 + 25 + 1 + 625)
"""How far one sample moves LLow, LHigh, count and sum of squares of losses in [0, 5]."""


def threshold(policy: Any, clients: list[FloatArray], rng: np.random.Generator) -> float:
    """Algorithm 2 on a round of these clients."""
    order = make_order()
    told = [policy.summarize(losses, np.arange(len(losses)), 1.0, order, rng) for losses in clients]
    reports = [replace(make_report(f"c{i}"), summary=each) for i, each in enumerate(told)]
    policies = ClientPolicies(summary=policy)
    read = [report.summary for report in decode_summaries(reports, policies, order, lambda client: 200)]
    low, high = min(each.loss_low for each in read), float(np.mean([each.loss_high for each in read]))
    return low + (high - low) * RATIO if low < 0 else loss_threshold(low, high, RATIO)


def error(policy: Any) -> float:
    """Root of the mean squared difference to the threshold of exact statistics, over rounds of a hundred clients."""
    rng, exact = np.random.default_rng(0), LossStatistics()
    differences = []
    for _ in range(REPEATS):
        clients = [rng.exponential(0.65 * math.exp(0.3 * rng.normal()), size=200) for _ in range(100)]
        differences.append(threshold(policy, clients, rng) - threshold(exact, clients, rng))
    return float(np.sqrt(np.mean(np.square(differences))))


@pytest.mark.parametrize(("epsilon", "most"), [(1, 0.6), (4, 0.12), (8, 0.06)])
def test_a_histogram_is_over_ten_times_closer_than_the_papers_four_statistics(epsilon: float, most: float) -> None:
    noise = noise_for(epsilon, PARTICIPATIONS)
    histogram, four = error(Histogram(noise)), error(LossStatistics(noise * FOUR, loss_clip=5.0))
    assert histogram < most
    assert histogram < four / 10
    assert error(SecAggHistogram(noise, least=100)) < histogram
