"""An audit: one who knows two neighbouring data sets and all but the noise tries to tell them apart, thousands of
times. What is achieved bounds epsilon from below, and must stay under what is claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_order
from scipy.stats import beta

from fedbalancer.client.summary import FractionTracker, Histogram, LossStatistics, SecAggHistogram
from fedbalancer.privacy import epsilon_of
from fedbalancer.types import FloatArray, Summary

pytest.importorskip("dp_accounting")

TRIES, DELTA, DOUBT = 20_000, 0.01, 1e-5
ORDER = make_order(loss_threshold=1.0)
LIST = np.random.default_rng(5).exponential(size=30)
ALL = np.full(30, 9.0)


def vector(summary: Summary) -> FloatArray:
    told = (summary.loss_low, summary.loss_high, summary.loss_sum, summary.over_count, summary.over_sumsq)
    return np.array(summary.released or told)


def release(policy: Any, losses: FloatArray, rng: np.random.Generator) -> FloatArray:
    """What the server sees of the losses; under secure aggregation the sum with the others, of whom it knows all."""
    seen = np.arange(len(LIST) - 1)
    found = vector(policy.summarize(losses, seen, 1.0, ORDER, rng))
    others = getattr(policy, "least", 1) - 1
    return sum((vector(policy.summarize(LIST, seen, 1.0, ORDER, rng)) for _ in range(others)), start=found)


def scores(policy: Any, exact: Any, pair: tuple[FloatArray, FloatArray], releases: int, tries: int) -> list[FloatArray]:
    """For both data sets the best statistic there is against Gaussian noise, of every try."""
    rng = np.random.default_rng(0)
    means = [release(exact, losses, rng) for losses in pair]
    direction = means[1] - means[0]
    return [
        np.array([sum(release(policy, x, rng) @ direction for _ in range(releases)) for _ in range(tries)])
        for x in pair
    ]


def shown_epsilon(without: FloatArray, with_it: FloatArray) -> float:
    """The largest epsilon that the tries prove (Clopper-Pearson at each of some cuts)."""
    tries, best = len(without), 0.0
    for cut in np.quantile(np.concatenate([without, with_it]), np.linspace(0.5, 0.999, 40)):
        false, true = int((without > cut).sum()), int((with_it > cut).sum())
        most_false = beta.ppf(1 - DOUBT, false + 1, max(tries - false, 1))
        least_true = beta.ppf(DOUBT, true, tries - true + 1) if true else 0.0
        if least_true > DELTA:
            best = max(best, math.log((least_true - DELTA) / most_false))
    return best


NEIGHBOURS = (LIST, np.append(LIST, 9.0))
CASES = [
    (Histogram(1.0), Histogram(0.0), NEIGHBOURS, 1),
    (Histogram(4.0), Histogram(0.0), NEIGHBOURS, 10),
    (SecAggHistogram(1.0, least=3), SecAggHistogram(0.0, least=3), NEIGHBOURS, 1),
    (LossStatistics(26.5, loss_clip=5.0), LossStatistics(loss_clip=5.0), NEIGHBOURS, 1),
    (FractionTracker(1.0), FractionTracker(0.0), (np.zeros(30), ALL), 1),
]


@pytest.mark.parametrize(("policy", "exact", "pair", "releases"), CASES)
def test_nobody_shows_more_than_is_claimed(policy: Any, exact: Any, pair: Any, releases: int) -> None:
    claimed = epsilon_of(policy.release(True).noise_multiplier, releases, DELTA)
    shown = shown_epsilon(*scores(policy, exact, pair, releases, TRIES // releases))
    assert 0 < shown <= claimed


@pytest.mark.parametrize("case", [CASES[0], CASES[4]])
def test_the_audit_finds_noise_that_is_too_small(case: Any) -> None:
    policy, exact, pair, _ = case
    claimed = epsilon_of(policy.release(True).noise_multiplier, 1, DELTA)
    weak = replace(policy, noise_multiplier=policy.noise_multiplier / 2)
    assert shown_epsilon(*scores(weak, exact, pair, 1, TRIES)) > claimed


def test_the_audit_finds_losses_that_are_not_clipped() -> None:
    claimed = LossStatistics(26.5, loss_clip=5.0)
    unclipped, pair = replace(claimed, loss_clip=None), (LIST, np.append(LIST, 50.0))
    shown = shown_epsilon(*scores(unclipped, LossStatistics(), pair, 1, 2000))
    assert shown > epsilon_of(claimed.release(True).noise_multiplier, 1, DELTA)
