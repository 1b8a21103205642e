"""Oort's pacer, on scripted utilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import heard, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import Ledger, RoundResult
from fedbalancer.server.clients import Oort
from fedbalancer.server.clients.oort import OortState

TEN = make_ledger([100] * 10, network_s=[10.0 * number for number in range(1, 11)])
"""With an epoch of one batch of 1 s: expected durations of 15, 25, ..., 105 s."""


def round_of(*utilities: float) -> RoundResult:
    """A round whose clients have these utilities |B| sqrt(sum of squares / count), with |B| = 4."""
    values = [{"trained": 4, "over_count": 2.0, "over_sumsq": 2.0 * (utility / 4) ** 2} for utility in utilities]
    return make_result([make_report(f"c{number}", **each) for number, each in enumerate(values)])


def played(policy: Oort, results: Sequence[RoundResult], ledger: Ledger = TEN) -> list[OortState]:
    """The states of the pacer, the first one included."""
    setup, states = make_setup(ledger, epoch_batches=1), [policy.init(make_setup(ledger, epoch_batches=1))]
    for result in results:
        state = make_state(heard(ledger, [0]), clients=states[-1])
        states.append(policy.observe(setup, state, result))
    return states


def percentiles(policy: Oort, utilities: Sequence[float]) -> list[float]:
    return [state.percentile for state in played(policy, [round_of(each) for each in utilities])]


@pytest.mark.parametrize(
    ("start", "preferred_s"), [(0.0, 15.0), (9.9, 15.0), (10.0, 25.0), (50.0, 65.0), (99.9, 105.0), (100.0, math.inf)]
)
def test_starts_at_a_percentile_of_the_expected_durations(start: float, preferred_s: float) -> None:
    assert Oort(pacer_start=start).init(make_setup(TEN, epoch_batches=1)).preferred_s == preferred_s


def test_expects_the_duration_of_whole_epochs_where_they_are_trained() -> None:
    assert Oort(pacer_start=0.0).init(make_setup(TEN)).preferred_s == 10 + 5 * 10


@pytest.mark.parametrize("window", [1, 2, 20])
def test_moves_once_a_window_while_utility_falls_and_not_every_round(window: int) -> None:
    falling = [1000.0 - number for number in range(6 * window)]
    steps = percentiles(Oort(pacer_window=window), falling)
    moved = [number for number in range(1, len(steps)) if steps[number] != steps[number - 1]]
    assert moved == [2 * window, 3 * window, 4 * window, 5 * window, 6 * window]
    assert steps[-1] == 10 + 5 * 5


@pytest.mark.parametrize("utilities", [[5.0] * 100, [float(number) for number in range(1, 101)]])
def test_stays_while_utility_does_not_fall(utilities: list[float]) -> None:
    assert set(percentiles(Oort(pacer_window=5), utilities)) == {10.0}


def test_compares_sums_of_windows_and_not_single_rounds() -> None:
    assert percentiles(Oort(pacer_window=2), [1.0, 9.0, 4.0, 7.0])[-1] == 10.0
    assert percentiles(Oort(pacer_window=2), [1.0, 9.0, 4.0, 5.0])[-1] == 15.0


def test_sums_over_the_clients_of_a_round() -> None:
    policy = Oort(pacer_window=1)
    assert played(policy, [round_of(3.0, 4.0), round_of(8.0)])[-1].percentile == 10.0
    assert played(policy, [round_of(3.0, 4.0), round_of(6.0)])[-1].percentile == 15.0


def test_the_preferred_duration_follows_the_percentile_until_it_has_no_bound() -> None:
    policy = Oort(pacer_window=1, pacer_delta=30.0)
    states = played(policy, [round_of(9.0 - number) for number in range(5)])
    assert [state.preferred_s for state in states] == [25.0, 25.0, 55.0, 85.0, math.inf, math.inf]


def test_rounds_without_a_report_say_nothing_of_utility() -> None:
    policy = Oort(pacer_window=2)
    heard_rounds = [round_of(5.0)] * 4
    with_lost = [heard_rounds[0], make_result(missing=["c1"]), *heard_rounds[1:], make_result()]
    assert played(policy, with_lost)[-1].percentile == 10.0
    assert played(policy, with_lost)[-1].utilities == played(policy, heard_rounds)[-1].utilities


@given(st.lists(st.floats(0, 100), max_size=80), st.integers(1, 7))
def test_moves_when_the_pseudo_code_says_so_looked_at_once_a_window(utilities: list[float], window: int) -> None:
    steps = percentiles(Oort(pacer_window=window), utilities)
    exact = [played(Oort(), [round_of(each)])[-1].utilities[0] for each in utilities]
    percentile = 10.0
    for now in range(1, len(utilities) + 1):
        if now >= 2 * window and now % window == 0:
            before, last = exact[now - 2 * window : now - window], exact[now - window : now]
            percentile += 5.0 if sum(before) > sum(last) else 0.0
        assert steps[now] == percentile


def test_remembers_no_more_than_two_windows() -> None:
    states = played(Oort(pacer_window=3), [round_of(5.0)] * 50)
    assert max(len(state.utilities) for state in states) < 6


def test_exploration_decays_beside_the_pacer() -> None:
    states: list[Any] = played(Oort(), [round_of(5.0)] * 3)
    assert [state.exploration for state in states] == pytest.approx([0.9, 0.882, 0.86436, 0.8470728])
    everybody = heard(TEN, range(10))
    setup, state = make_setup(everybody), make_state(everybody, clients=replace(states[-1]))
    assert Oort().observe(setup, state, round_of(5.0)).exploration == 0.0
