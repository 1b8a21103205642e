"""Power-of-choice: candidates by size, then by loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import Unchanged, heard, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.types import FloatArray, Ledger, ServerState, Setup
from fedbalancer.server.clients import PowerOfChoice
from fedbalancer.server.clients.power_of_choice import PowerOfChoiceState


def with_losses(losses: list[float], size: list[int] | None = None) -> Ledger:
    """Clients with these last losses; NaN was never heard of."""
    rows = [row for row, loss in enumerate(losses) if not math.isnan(loss)]
    ledger = make_ledger(size if size is not None else [100] * len(losses))
    return heard(ledger, rows, loss_mean=np.array(losses)[rows])


def world(ledger: Ledger, k: int, invited: Sequence[int] = ()) -> tuple[Setup, ServerState]:
    """Setup and state in which these clients were invited but never heard of."""
    before = np.isin(np.arange(len(ledger.clients)), invited) | ledger.explored
    return make_setup(ledger, clients_per_round=k), make_state(ledger, clients=PowerOfChoiceState(before))


def times_chosen(ledger: Ledger, policy: PowerOfChoice, times: int, k: int, invited: Sequence[int] = ()) -> FloatArray:
    setup, state = world(ledger, k, invited)
    seen = np.zeros(len(ledger.clients))
    for seed in range(times):
        seen[policy.select_clients(replace(setup, seed=seed), state, np.arange(len(seen)))] += 1
    return seen


@given(st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=30), st.integers(1, 40), st.data())
def test_gives_exactly_k_different_available_clients(losses: list[float], k: int, data: st.DataObject) -> None:
    ledger = with_losses(losses)
    available = np.array(sorted(data.draw(st.sets(st.integers(0, len(losses) - 1)))), dtype=np.int64)
    policy = PowerOfChoice(data.draw(st.floats(1, 5)))
    setup, state = world(ledger, k)
    with Unchanged(setup, state, available):
        chosen = policy.select_clients(setup, state, available)
    assert len(chosen) == min(k, len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available.tolist())


@given(st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=30), st.integers(1, 40))
def test_takes_the_highest_losses_when_everybody_is_a_candidate(losses: list[float], k: int) -> None:
    ledger = with_losses(losses)
    setup, state = world(ledger, k)
    chosen = PowerOfChoice(100.0).select_clients(setup, state, np.arange(len(losses)))
    known = [math.inf if math.isnan(loss) else loss for loss in losses]
    assert sorted(known[row] for row in chosen) == sorted(known)[-len(chosen) :]


def test_clients_never_heard_of_come_first() -> None:
    seen = times_chosen(with_losses([9.0, math.nan, 9.0, math.nan]), PowerOfChoice(100.0), 20, k=2)
    assert seen.tolist() == [0, 20, 0, 20]


def test_who_was_invited_and_did_not_report_counts_with_the_mean_loss() -> None:
    ledger = with_losses([4.0, 8.0, math.nan, math.nan])  # 2 was invited in vain, 3 never
    assert times_chosen(ledger, PowerOfChoice(100.0), 20, k=1, invited=[2]).tolist() == [0, 0, 0, 20]
    assert times_chosen(ledger, PowerOfChoice(100.0), 20, k=2, invited=[2]).tolist() == [0, 20, 0, 20]
    assert times_chosen(ledger, PowerOfChoice(100.0), 20, k=3, invited=[2]).tolist() == [0, 20, 20, 20]
    nobody = with_losses([math.nan] * 4)
    assert (times_chosen(nobody, PowerOfChoice(100.0), 200, k=1, invited=range(4)) > 20).all()


def test_remembers_who_was_invited_whether_or_not_they_reported() -> None:
    setup = make_setup(make_ledger([100] * 4))
    state = make_state(setup.ledger, clients=PowerOfChoice().init(setup))
    result = make_result([make_report("c1")], missing=["c3"])
    with Unchanged(setup, state):
        after = PowerOfChoice().observe(setup, state, result)
    assert after.invited.tolist() == [False, True, False, True]
    later = PowerOfChoice().observe(setup, replace(state, clients=after), make_result(missing=["c0"]))
    assert later.invited.tolist() == [True, True, False, True]


def test_equal_losses_are_chosen_among_at_random() -> None:
    seen = times_chosen(with_losses([math.nan] * 6), PowerOfChoice(100.0), 2000, k=2)
    assert stats.chisquare(seen).pvalue > 0.001


def test_as_many_candidates_as_clients_is_a_draw_by_size() -> None:
    size = [10, 20, 30, 40]
    seen = times_chosen(with_losses([1.0, 9.0, 2.0, 8.0], size), PowerOfChoice(1.0), 2000, k=1)
    assert stats.chisquare(seen, 20 * np.array(size)).pvalue > 0.001


def test_two_candidates_for_one_place_leave_it_to_the_higher_loss() -> None:
    size, losses = np.array([10.0, 20.0, 30.0, 40.0]), [1.0, 9.0, 2.0, 8.0]
    seen = times_chosen(with_losses(losses, [10, 20, 30, 40]), PowerOfChoice(2.0), 3000, k=1)
    chance, p = np.zeros(4), size / size.sum()
    for first in range(4):
        for second in set(range(4)) - {first}:
            best = max(first, second, key=lambda row: losses[row])
            chance[best] += p[first] * p[second] / (1 - p[first])
    assert seen[0] == 0  # it has the lowest loss of any pair
    assert stats.chisquare(seen[1:], 3000 * chance[1:]).pvalue > 0.001


@pytest.mark.parametrize(("candidates", "k", "d"), [(2.0, 3, 6), (1.5, 2, 3), (1.1, 10, 11)])
def test_has_d_candidates(candidates: float, k: int, d: int) -> None:
    # All but one of d + 1 clients are candidates, so the lowest loss that can be chosen is that of rank d - K.
    ledger = with_losses([float(number) for number in range(d + 1)])
    (setup, state), policy = world(ledger, k), PowerOfChoice(candidates)
    lowest = [policy.select_clients(replace(setup, seed=seed), state, np.arange(d + 1)).min() for seed in range(400)]
    assert min(lowest) == d - k


def test_differs_from_round_to_round() -> None:
    ledger = with_losses([1.0] * 50)
    setup, state = world(ledger, 3)
    first = PowerOfChoice().select_clients(setup, state, np.arange(50))
    assert not np.array_equal(first, PowerOfChoice().select_clients(setup, replace(state, round=2), np.arange(50)))
