"""Client selectors with one rule."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import Unchanged, heard, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.types import FloatArray, Ledger, ServerState, Setup
from fedbalancer.server.clients import ByLoss, FedCS, LeastSelected, PowerOfChoice, Uniform
from fedbalancer.server.clients.simple import LeastSelectedState, PowerOfChoiceState
from fedbalancer.testing import check_policy


@pytest.mark.parametrize("wanted", [1, 3, 6, 9])
@pytest.mark.parametrize("available", [[], [2], [0, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_gives_exactly_k_different_available_clients(wanted: int, available: list[int]) -> None:
    setup, state, rows = make_setup(clients_per_round=wanted), make_state(), np.array(available, dtype=np.int64)
    with Unchanged(setup, state, rows):
        chosen = Uniform().select_clients(setup, state, rows)
    assert len(chosen) == min(wanted, len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available)


def test_everybody_is_as_likely_as_any_other() -> None:
    ledger = make_ledger([1, 10, 100, 1000, 5, 7], network_s=[1, 2, 3, 4, 5, 6])
    setup, state = make_setup(ledger), make_state(ledger)
    seen = np.zeros(6)
    for round in range(2000):
        seen[Uniform().select_clients(setup, replace(state, round=round), np.arange(6))] += 1
    assert stats.chisquare(seen).pvalue > 0.001


def test_the_same_round_gives_the_same_clients_and_another_seed_others() -> None:
    ledger = make_ledger([100] * 50)
    setup, state, rows = make_setup(ledger), make_state(ledger), np.arange(50)
    first = Uniform().select_clients(setup, state, rows)
    assert np.array_equal(first, Uniform().select_clients(setup, replace(state, clock_s=9.0), rows))
    assert not np.array_equal(first, Uniform().select_clients(replace(setup, seed=1), state, rows))


def counts(losses: list[float], sizes: list[int], rounds: int = 2000) -> np.ndarray:
    """The number of selections of each client, two per round."""
    ledger = replace(make_ledger(sizes), loss_mean=np.array(losses))
    setup = replace(make_setup(ledger), clients_per_round=2)
    chosen = np.zeros(len(sizes))
    for number in range(rounds):
        chosen[ByLoss().select_clients(setup, make_state(ledger=ledger, round=number), np.arange(len(sizes)))] += 1
    return chosen


def test_keeps_the_contract() -> None:
    assert check_policy(ByLoss()) == "clients"


def test_high_losses_and_many_samples_come_more_often_and_nobody_is_shut_out() -> None:
    actual = counts([4.0, 1.0, 1.0, 0.25], [100, 100, 400, 100])
    assert actual[0] > actual[2] > actual[1] > actual[3] > 40
    assert actual.sum() == 4000


def test_who_was_never_heard_of_counts_with_the_highest_loss_and_at_first_all_are_alike() -> None:
    heard = counts([4.0, 0.5, np.nan, 0.5], [100] * 4)
    assert abs(heard[0] - heard[2]) < 150
    assert heard[2] > 2 * heard[1]
    first = counts([np.nan] * 4, [100] * 4)
    assert first.min() > 900


def test_losses_of_zero_are_no_error() -> None:
    assert counts([0.0, 0.0, 0.0], [10, 10, 10], rounds=300).min() > 100


durations = st.lists(st.integers(1, 60).map(float), min_size=1, max_size=12)


def lasting(seconds: list[float]) -> Ledger:
    """Clients with these transfer times, and 5 s of training."""
    return make_ledger([10] * len(seconds), network_s=seconds)


@given(durations, st.integers(1, 15), st.floats(1, 65))
def test_no_k_candidates_hold_more_that_meet_a_deadline(seconds: list[float], k: int, deadline_s: float) -> None:
    ledger = lasting(seconds)
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    chosen = FedCS(100.0).select_clients(setup, state, np.arange(len(seconds)))
    in_time = [second + 5 <= deadline_s for second in seconds]
    every = itertools.combinations(range(len(seconds)), min(k, len(seconds)))
    assert sum(in_time[row] for row in chosen) == max(sum(in_time[row] for row in cohort) for cohort in every)


@given(durations, st.integers(1, 15), st.floats(1, 4), st.data())
def test_fedcs_gives_exactly_k_different_available_clients(
    seconds: list[float], k: int, candidates: float, data: st.DataObject
) -> None:
    ledger = lasting(seconds)
    available = np.array(sorted(data.draw(st.sets(st.integers(0, len(seconds) - 1)))), dtype=np.int64)
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    with Unchanged(setup, state, available):
        chosen = FedCS(candidates).select_clients(setup, state, available)
    assert len(chosen) == min(k, len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available.tolist())


def test_asks_at_random() -> None:
    ledger = lasting([1.0, 2.0, 3.0, 4.0])
    setup, state = make_setup(ledger, clients_per_round=1), make_state(ledger)
    seen = np.zeros(4)
    for seed in range(2000):
        seen[FedCS(2.0).select_clients(replace(setup, seed=seed), state, np.arange(4))] += 1
    # The fastest of every pair of the four.
    assert seen[3] == 0
    assert stats.chisquare(seen[:3], 2000 * np.array([3, 2, 1]) / 6).pvalue > 0.001


def test_expects_the_time_of_the_samples_trained_lately() -> None:
    ledger = heard(make_ledger([100] * 3), [1], recent_trained=10.0)
    setup, state = make_setup(ledger, clients_per_round=1), make_state(ledger)
    assert FedCS(100.0).select_clients(setup, state, np.arange(3)).tolist() == [1]


def test_expects_the_batches_that_an_epoch_has() -> None:
    ledger = make_ledger([100, 10], network_s=[10.0, 11.0])
    state = make_state(ledger)
    for epoch_batches, fastest in ((None, 1), (1, 0)):
        setup = make_setup(ledger, clients_per_round=1, epoch_batches=epoch_batches)
        assert FedCS(100.0).select_clients(setup, state, np.arange(2)).tolist() == [fastest]


@pytest.mark.parametrize(("candidates", "k", "worst"), [(1.0, 3, 9), (2.0, 3, 6), (1.5, 2, 8)])
def test_asks_so_many(candidates: float, k: int, worst: int) -> None:
    ledger = lasting([float(number + 1) for number in range(10)])
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    last = [
        FedCS(candidates).select_clients(replace(setup, seed=seed), state, np.arange(10)).max() for seed in range(2000)
    ]
    assert max(last) == worst  # with d asked, at least d - k of them are slower


def with_losses(losses: list[float], size: list[int] | None = None) -> Ledger:
    """Clients with these last losses; NaN: never reported."""
    rows = [row for row, loss in enumerate(losses) if not math.isnan(loss)]
    ledger = make_ledger(size if size is not None else [100] * len(losses))
    return heard(ledger, rows, loss_mean=np.array(losses)[rows])


def world(ledger: Ledger, k: int, invited: Sequence[int] = ()) -> tuple[Setup, ServerState]:
    """Setup and state in which these clients were invited but never reported."""
    before = np.isin(np.arange(len(ledger.clients)), invited) | ledger.explored
    return make_setup(ledger, clients_per_round=k), make_state(ledger, clients=PowerOfChoiceState(before))


def times_chosen(ledger: Ledger, policy: PowerOfChoice, times: int, k: int, invited: Sequence[int] = ()) -> FloatArray:
    setup, state = world(ledger, k, invited)
    seen = np.zeros(len(ledger.clients))
    for seed in range(times):
        seen[policy.select_clients(replace(setup, seed=seed), state, np.arange(len(seen)))] += 1
    return seen


@given(st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=30), st.integers(1, 40), st.data())
def test_power_of_choice_gives_exactly_k_different_available_clients(
    losses: list[float], k: int, data: st.DataObject
) -> None:
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
    ledger = with_losses([4.0, 8.0, math.nan, math.nan])  # 2 was invited without a report, 3 was never invited
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


LEDGER = make_ledger([20] * 10)
SETUP = make_setup(LEDGER, clients_per_round=3)


def test_least_selected_keeps_the_contract() -> None:
    assert check_policy(LeastSelected()) == "clients"


@given(st.lists(st.integers(0, 3), min_size=10, max_size=10), st.sets(st.integers(0, 9)))
def test_nobody_is_passed_over_for_one_that_was_selected_more_often(times: list[int], there: set[int]) -> None:
    state = make_state(LEDGER, clients=LeastSelectedState(np.array(times, dtype=np.int32)))
    rows = LeastSelected().select_clients(SETUP, state, np.array(sorted(there), dtype=np.int64))
    left = there - set(rows.tolist())
    assert len(rows) == min(3, len(there))
    assert max((times[row] for row in rows), default=0) <= min((times[row] for row in left), default=9)


def test_everybody_takes_a_turn_before_anybody_has_two() -> None:
    policy = LeastSelected()
    state = make_state(LEDGER, clients=policy.init(SETUP))
    seen: Counter[int] = Counter()
    for round in range(1, 21):
        rows = policy.select_clients(SETUP, replace(state, round=round), np.arange(10))
        seen.update(rows.tolist())
        result = make_result([make_report(LEDGER.clients[row]) for row in rows])
        state = replace(state, clients=policy.observe(SETUP, state, result))
        assert max(seen.values()) - min(seen[row] for row in range(10)) <= 1
    assert state.clients.times.tolist() == [seen[row] for row in range(10)]


def test_one_that_is_seldom_there_is_taken_when_it_comes() -> None:
    policy = LeastSelected()
    state = make_state(LEDGER, clients=policy.init(SETUP))
    for round in range(1, 10):
        rows = policy.select_clients(SETUP, replace(state, round=round), np.arange(9))
        result = make_result([make_report(LEDGER.clients[row]) for row in rows])
        state = replace(state, clients=policy.observe(SETUP, state, result))
    assert 9 in policy.select_clients(SETUP, replace(state, round=10), np.arange(10))


def test_clients_that_join_later_come_first() -> None:
    policy, few = LeastSelected(), make_ledger([20] * 4)
    state = make_state(LEDGER, clients=policy.init(make_setup(few)))
    after = policy.observe(SETUP, state, make_result([make_report(client) for client in few.clients]))
    assert after.times.tolist() == [1] * 4 + [0] * 6
