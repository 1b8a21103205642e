"""Oort: its scores, its exploration-exploitation scheme and its pacer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, heard, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedbalancer.core.types import IndexArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.server.clients import Oort
from fedbalancer.server.clients.oort import OortState, exploit_count, next_exploration, select_over_cutoff


def world(ledger: Ledger, exploration: float = 0.0, preferred_s: float = math.inf, **setup: Any) -> Any:
    """Setup and state before round 12."""
    state = make_state(ledger, round=11, clients=OortState(exploration, 10.0, preferred_s))
    return make_setup(ledger, epoch_batches=1, **setup), state


def literal_scores(policy: Oort, setup: Setup, state: ServerState) -> dict[int, float]:
    """Lines 7 to 14 of Oort's Algorithm 1 with clipped and normalised utilities, one client after the other."""
    ledger, clients = (
        state.ledger,
        [row for row in range(len(state.ledger.clients)) if state.ledger.participations[row]],
    )
    utility = {}
    for i in clients:
        trained = ledger.recent_trained[i, -1]
        utility[i] = trained * math.sqrt(ledger.over_sumsq[i] / ledger.over_count[i])
    ascending = sorted(utility.values())
    bound = ascending[min(int(policy.clip * len(ascending)), len(ascending) - 1)]
    clipped = {i: min(u, bound) for i, u in utility.items()}
    low, high = min(clipped.values()), max(clipped.values())
    scores = {}
    for i in clients:
        score = (clipped[i] - low) / (high - low) if high > low else 1.0
        score += math.sqrt(0.1 * math.log(state.round + 1) / ledger.last_round[i])
        duration = ledger.network_s[i] + setup.epochs * 1 * ledger.batch_s_sum[i] / ledger.batch_s_count[i]
        if state.clients.preferred_s < duration:
            score *= (state.clients.preferred_s / duration) ** policy.alpha
        scores[i] = score
    return scores


@st.composite
def ledgers(draw: Any) -> Ledger:
    count = draw(st.integers(1, 25))

    def column(values: Any) -> NDArray[Any]:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    ledger = make_ledger(column(st.integers(1, 200)), column(st.floats(1, 50)), column(st.floats(0.1, 9)))
    recent = np.repeat(column(st.integers(1, 50))[:, None], 5, axis=1).astype(float)
    ledger = replace(ledger, recent_trained=recent)
    rows = draw(st.lists(st.integers(0, count - 1), unique=True))
    values = {
        "over_count": column(st.integers(1, 50).map(float))[rows],
        "over_sumsq": column(st.floats(0, 900))[rows],
        "last_round": column(st.integers(1, 11))[rows],
        "participations": column(st.integers(1, 20))[rows],
    }
    known: Ledger = heard(ledger, rows, **values)
    return known


@given(ledgers(), st.sampled_from([math.inf, 5.0, 20.0, 60.0]), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_scores_are_those_of_the_pseudo_code(ledger: Ledger, preferred_s: float, clip: float) -> None:
    setup, state = world(ledger, preferred_s=preferred_s)
    known = np.flatnonzero(ledger.participations)
    policy = Oort(clip=clip)
    expected = literal_scores(policy, setup, state) if len(known) else {}
    assert policy.scores(setup, state, known).tolist() == pytest.approx([expected[int(row)] for row in known])


@given(ledgers(), st.floats(0, 1), st.integers(1, 30), st.sampled_from([math.inf, 2, 10]), st.data())
def test_invites_different_available_clients_and_changes_nothing(
    ledger: Ledger, exploration: float, wanted: int, blacklist: float, data: st.DataObject
) -> None:
    everybody = st.integers(0, len(ledger.clients) - 1)
    available = np.array(sorted(data.draw(st.sets(everybody))), dtype=np.int64)
    setup, state = world(ledger, exploration, 20.0, clients_per_round=wanted)
    policy = Oort(blacklist=blacklist)
    with Unchanged(setup, state, available):
        chosen = policy.select_clients(setup, state, available)
    assert len(chosen) == min(math.floor(1.3 * wanted + 1e-9), len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available.tolist())
    assert np.array_equal(chosen, policy.select_clients(setup, state, available))


@given(ledgers(), st.integers(1, 6), st.floats(0.5, 1), st.integers(0, 9))
def test_exploits_only_over_the_cut_off(ledger: Ledger, wanted: int, cutoff: float, seed: int) -> None:
    known = np.flatnonzero(ledger.participations)
    setup, state = world(ledger, 0.0, 20.0, clients_per_round=wanted, seed=seed)
    policy = Oort(cutoff=cutoff, overcommit=1.0)
    chosen = policy.select_clients(setup, state, known)
    if not len(known):
        return
    scores = literal_scores(policy, setup, state)
    limit = cutoff * sorted(scores.values(), reverse=True)[min(wanted, len(known) - 1)]
    assert all(scores[row] >= limit * (1 - 1e-12) for row in chosen)


@pytest.mark.parametrize(("k", "invited"), [(1, 1), (3, 3), (4, 5), (5, 6), (10, 13), (100, 130)])
def test_invites_thirteen_for_every_ten(k: int, invited: int) -> None:
    setup, state = world(make_ledger([100] * 200), clients_per_round=k)
    assert len(Oort().select_clients(setup, state, np.arange(200))) == invited


def test_draws_in_proportion_to_score() -> None:
    ledger = heard(make_ledger([100] * 4), range(4), over_count=1.0, over_sumsq=[0.0, 1.0, 4.0, 9.0])
    policy = Oort(cutoff=0.0, overcommit=1.0, clip=1.0)
    share = np.array(list(literal_scores(policy, *world(ledger)).values()))
    seen = times_chosen(ledger, policy, 2000, clients_per_round=1)
    assert stats.chisquare(seen, 2000 * share / share.sum()).pvalue > 0.001


def test_explores_in_proportion_to_speed() -> None:
    ledger = make_ledger([100] * 4, network_s=[5.0, 15.0, 35.0, 75.0])  # and 5 s of training: one batch an epoch
    seen = times_chosen(ledger, Oort(overcommit=1.0), 2000, exploration=1.0, clients_per_round=1)
    speed = 1 / np.array([10.0, 20.0, 40.0, 80.0])
    assert stats.chisquare(seen, 2000 * speed / speed.sum()).pvalue > 0.001


@pytest.mark.parametrize(("exploration", "explored"), [(1.0, 10), (0.9, 9), (0.5, 5), (0.2, 2), (0.0, 0)])
def test_explores_its_share(exploration: float, explored: int) -> None:
    setup, state = world(heard(make_ledger([100] * 40), range(20)), exploration, clients_per_round=10)
    assert (Oort(overcommit=1.0).select_clients(setup, state, np.arange(40)) >= 20).sum() == explored


class TestBlacklist:
    def test_is_off_by_default(self) -> None:
        ledger = heard(make_ledger([100] * 3), range(3), participations=[1, 10_000, 1], over_sumsq=[0.0, 9.0, 0.0])
        assert times_chosen(ledger, Oort(overcommit=1.0), 20, clients_per_round=1)[1] > 0

    def test_ends_the_exploitation_of_a_client_heard_too_often(self) -> None:
        ledger = heard(make_ledger([100] * 5), range(5), participations=[11, 10, 1, 1, 1])
        policy = Oort(overcommit=1.0, blacklist=10, blacklist_share=1.0)
        seen = times_chosen(ledger, policy, 200, clients_per_round=1)
        assert seen[0] == 0
        assert (seen[1:] > 0).all()

    def test_takes_no_more_than_its_share_of_clients_and_those_heard_most(self) -> None:
        ledger = heard(make_ledger([100] * 10), range(10), participations=[11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
        seen = times_chosen(ledger, Oort(overcommit=1.0, blacklist=10), 300, clients_per_round=1)
        assert (seen[:7] > 0).all()
        assert not seen[7:].any()

    def test_is_ignored_where_nobody_else_is_left(self) -> None:
        ledger = heard(make_ledger([100] * 4), range(4), participations=99)
        setup, state = world(ledger, clients_per_round=3)
        policy = Oort(overcommit=1.0, blacklist=10, blacklist_share=1.0)
        assert len(policy.select_clients(setup, state, np.arange(4))) == 3

    def test_does_not_keep_anybody_from_exploring(self) -> None:
        ledger = heard(make_ledger([100] * 6), range(3), participations=99)
        policy = Oort(overcommit=1.0, blacklist=10, blacklist_share=1.0)
        assert times_chosen(ledger, policy, 20, clients_per_round=3).tolist() == [0, 0, 0, 20, 20, 20]


def test_a_million_clients_finish(million: Ledger) -> None:
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(rng.random(len(million.clients)) < 0.5)
    setup, state = world(heard(million, rows, over_sumsq=rng.uniform(0, 900, len(rows))), 0.3, 20.0)
    setup = replace(setup, clients_per_round=1000)
    chosen = Oort().select_clients(setup, state, np.arange(len(million.clients)))
    assert len(set(chosen.tolist())) == 1300


def times_chosen(ledger: Ledger, policy: Oort, times: int, exploration: float = 0.0, **setup: Any) -> NDArray[Any]:
    """The number of selections of each client; every draw has its own seed."""
    base, state = world(ledger, exploration, **setup)
    seen = np.zeros(len(ledger.clients))
    for seed in range(times):
        seen[policy.select_clients(replace(base, seed=seed), state, np.arange(len(seen)))] += 1
    return seen


scores = st.floats(0, 10) | st.sampled_from([0.0, 1.0, 2.0])


@given(st.data())
def test_the_clients_over_the_cut_off_are_those_of_a_full_sort(data: st.DataObject) -> None:
    base = np.array(data.draw(st.lists(scores, min_size=1, max_size=60)))
    factors = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(base), max_size=len(base))))
    count, cutoff = data.draw(st.integers(1, 70)), data.draw(st.floats(0, 1))
    looked: list[IndexArray] = []

    def penalty(positions: IndexArray) -> np.ndarray:
        looked.append(positions)
        return factors[positions]

    rows, actual = select_over_cutoff(base, penalty, count, cutoff)
    full = base * factors
    limit = cutoff * sorted(full, reverse=True)[min(count, len(full) - 1)]
    assert rows.tolist() == np.flatnonzero(full >= limit).tolist()
    assert actual.tolist() == full[rows].tolist()


def test_looks_at_the_durations_of_few() -> None:
    rng = np.random.default_rng(0)
    base, factors = rng.random(100_000), rng.uniform(0.5, 1, 100_000)
    asked = 0

    def penalty(positions: IndexArray) -> np.ndarray:
        nonlocal asked
        asked += len(positions)
        return factors[positions]

    select_over_cutoff(base, penalty, 100, 0.95)
    assert asked < 20_000


@given(st.integers(0, 50), st.floats(0, 1), st.integers(0, 60), st.integers(0, 60))
def test_exploitation_takes_its_share_and_what_exploration_lacks(
    count: int, exploration: float, known: int, unknown: int
) -> None:
    actual = exploit_count(count, exploration, known, unknown)
    assert 0 <= actual <= known
    share = int(count * (1 - exploration) + 1e-9)
    if known >= count and unknown >= count:
        assert actual == share
    if known + unknown >= count:
        assert count - actual <= unknown


@pytest.mark.parametrize(("exploration", "wanted"), [(0.9, 1), (0.8, 2), (0.7, 3), (0.2, 8)])
def test_a_round_share_is_not_lost_to_rounding(exploration: float, wanted: int) -> None:
    assert exploit_count(10, exploration, known=99, unknown=99) == wanted


def test_exploration_shrinks_to_its_least_and_ends_when_all_are_known() -> None:
    some, everybody = heard(make_ledger(), range(5)), heard(make_ledger(), range(6))
    path = [0.9]
    for _ in range(100):
        path.append(next_exploration(path[-1], 0.98, 0.2, some))
    assert path[:3] == pytest.approx([0.9, 0.882, 0.86436])
    assert 0.2 * 0.98 < path[-1] <= 0.2
    assert path[-1] == path[-2]
    assert next_exploration(0.9, 0.98, 0.2, everybody) == 0.0


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
