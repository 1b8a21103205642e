"""Loss thresholds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from builders import make_order, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.summary import FractionTracker
from fedbalancer.core.types import ServerState
from fedbalancer.server.pace import PaceState
from fedbalancer.server.threshold import InterpolatedThreshold, LossRange, NoThreshold, TrackedThreshold, loss_threshold
from fedbalancer.testing import check_policy


def test_is_zero_and_remembers_nothing() -> None:
    policy, setup, state = NoThreshold(), make_setup(), make_state()
    assert policy.init(setup) is None
    assert policy.observe(setup, state, make_result([make_report(loss_low=3.0)])) is None
    assert policy.threshold(setup, state) == 0.0


Released = list[tuple[float, float]]
"""LLow and LHigh of the clients of one round."""

released = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0, 10)).map(lambda pair: (min(pair), max(pair))), min_size=0, max_size=6
)


def after(rounds: list[Released], history: Literal["round", "cumulative"] = "round", ratio: float = 0.5) -> ServerState:
    """The state after these rounds; the threshold has been above zero before."""
    policy, setup = InterpolatedThreshold(history), make_setup()
    state = make_state(pace=PaceState(loss_threshold_ratio=ratio), threshold=LossRange(started=True))
    for clients in rounds:
        reports = [make_report(f"c{i}", loss_low=low, loss_high=high) for i, (low, high) in enumerate(clients)]
        state = replace(state, threshold=policy.observe(setup, state, make_result(reports)))
    return state


def threshold(state: ServerState) -> float:
    return InterpolatedThreshold().threshold(make_setup(), state)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1))
def test_is_the_papers_line_4(low: float, high: float, ratio: float) -> None:
    assert loss_threshold(low, high, ratio) == pytest.approx(low + (high - low) * ratio)


@given(released.filter(bool), st.floats(0, 1))
def test_lies_between_the_lowest_and_the_highest_loss_reported(clients: Released, ratio: float) -> None:
    actual = threshold(after([clients], ratio=ratio))
    assert min(low for low, _ in clients) - 1e-9 <= actual <= max(high for _, high in clients) + 1e-9


@given(st.lists(released, min_size=1, max_size=6).filter(any), st.floats(0, 1))
def test_looks_at_the_last_round_that_had_reports(rounds: list[Released], ratio: float) -> None:
    last = [clients for clients in rounds if clients][-1]
    low, high = min(low for low, _ in last), sum(high for _, high in last) / len(last)
    assert threshold(after(rounds, ratio=ratio)) == pytest.approx(low + (high - low) * ratio, abs=1e-9)


@given(st.lists(released, min_size=1, max_size=6).filter(any), st.floats(0, 1))
def test_cumulative_looks_at_all_reports_ever(rounds: list[Released], ratio: float) -> None:
    everything = [pair for clients in rounds for pair in clients]
    low, high = min(low for low, _ in everything), sum(high for _, high in everything) / len(everything)
    actual = threshold(after(rounds, "cumulative", ratio))
    assert actual == pytest.approx(low + (high - low) * ratio, abs=1e-9)


def test_a_round_without_reports_keeps_the_last_threshold() -> None:
    assert threshold(after([[(1.0, 3.0)], [], []])) == 2.0


def test_is_zero_before_the_first_report() -> None:
    assert threshold(after([], ratio=0.5)) == 0.0
    assert threshold(after([[]], ratio=0.5)) == 0.0


def test_is_zero_until_the_ratio_first_rises_and_the_low_loss_when_it_is_back_at_zero() -> None:
    policy, setup = InterpolatedThreshold(), make_setup()
    reports = [make_report(loss_low=1.0, loss_high=3.0)]
    state = make_state(threshold=policy.init(setup))
    actual = []
    for ratio in (0.0, 0.0, 0.25, 0.0):
        state = replace(state, pace=PaceState(loss_threshold_ratio=ratio))
        sent = policy.threshold(setup, state)
        actual.append(sent)
        state = replace(state, threshold=policy.observe(setup, state, make_result(reports, loss_threshold=sent)))
    assert actual == [0.0, 0.0, 1.5, 1.0]


def test_a_threshold_that_was_sent_is_remembered_over_a_failed_round() -> None:
    policy, setup = InterpolatedThreshold(), make_setup()
    state = make_state(threshold=LossRange(1.0, 3.0, 1))
    own = policy.observe(setup, state, make_result(missing=["c0"], loss_threshold=1.5))
    assert own == LossRange(1.0, 3.0, 1, started=True)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_never_goes_below_zero_when_noise_does(ratio: float) -> None:
    assert threshold(after([[(-5.0, -1.0)]], ratio=ratio)) == 0.0
    assert math.copysign(1, threshold(after([[(-5.0, -1.0)]], ratio=ratio))) == 1


def test_keeps_the_contract() -> None:
    assert check_policy(TrackedThreshold(), slot="threshold") == "threshold"


def follow(policy: TrackedThreshold, noise_multiplier: float, rounds: int) -> list[float]:
    """The thresholds over rounds with a hundred clients whose median loss is ln 2."""
    setup, rng, summary = make_setup(), np.random.default_rng(0), FractionTracker(noise_multiplier)
    state = replace(make_state(), threshold=policy.init(setup))
    actual = []
    for _ in range(rounds):
        order = make_order(loss_threshold=policy.threshold(setup, state))
        summaries = [summary.summarize(rng.exponential(size=50), np.arange(50), 1.0, order, rng) for _ in range(100)]
        reports = [replace(make_report(f"c{i}"), summary=each) for i, each in enumerate(summaries)]
        state = replace(state, threshold=policy.observe(setup, state, make_result(reports)))
        actual.append(policy.threshold(setup, state))
    return actual


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
    for summaries in (1e300, -1e300):
        moved = policy.observe(setup, state, make_result([make_report("c0", released=(summaries,))])).threshold
        assert 0.3 < moved < 3


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        TrackedThreshold(share=0.0)
