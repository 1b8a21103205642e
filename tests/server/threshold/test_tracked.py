"""A threshold that follows a quantile."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_order, make_report, make_result, make_setup, make_state

from fedbalancer.client.summary import FractionTracker
from fedbalancer.server.threshold import TrackedThreshold
from fedbalancer.testing import check_policy


def test_keeps_the_contract() -> None:
    assert check_policy(TrackedThreshold(), slot="threshold") == "threshold"


def follow(policy: TrackedThreshold, noise_multiplier: float, rounds: int) -> list[float]:
    """The thresholds of so many rounds with a hundred clients whose median loss is ln 2."""
    setup, rng, summary = make_setup(), np.random.default_rng(0), FractionTracker(noise_multiplier)
    state = replace(make_state(), threshold=policy.init(setup))
    found = []
    for _ in range(rounds):
        order = make_order(loss_threshold=policy.threshold(setup, state))
        told = [summary.summarize(rng.exponential(size=50), np.arange(50), 1.0, order, rng) for _ in range(100)]
        reports = [replace(make_report(f"c{i}"), summary=each) for i, each in enumerate(told)]
        state = replace(state, threshold=policy.observe(setup, state, make_result(reports)))
        found.append(policy.threshold(setup, state))
    return found


@pytest.mark.parametrize("start", [0.01, 5.0])
def test_it_finds_the_quantile_from_below_and_from_above(start: float) -> None:
    assert follow(TrackedThreshold(share=0.5, start=start, step=1.0), 0.0, 60)[-1] == pytest.approx(
        math.log(2), abs=0.05
    )


def test_under_noise_of_epsilon_8_over_140_rounds_it_stays_near() -> None:
    late = follow(TrackedThreshold(share=0.5, step=0.05), 7.15, 140)[40:]
    assert np.sqrt(np.mean((np.array(late) - math.log(2)) ** 2)) < 0.3


def test_a_round_without_a_word_moves_nothing_and_no_number_throws_it_out() -> None:
    policy, setup = TrackedThreshold(), make_setup()
    state = replace(make_state(), threshold=policy.init(setup))
    assert policy.observe(setup, state, make_result()) == policy.init(setup)
    for told in (1e300, -1e300):
        moved = policy.observe(setup, state, make_result([make_report("c0", released=(told,))])).threshold
        assert 0.3 < moved < 3


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        TrackedThreshold(share=0.0)
