"""The paper's client selection."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, heard, known_clients, make_ledger, make_report, make_result, make_setup, oort_world
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedbalancer.core.types import FloatArray, Ledger
from fedbalancer.server.clients import OverThresholdUtility
from fedbalancer.server.clients.over_threshold import OverThresholdState

PLAIN = OverThresholdUtility(clip=1.0, normalise=False)
"""Neither clipped nor scaled."""


class TestChoose:
    @given(st.data())
    def test_gives_exactly_k_different_available_clients(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 30))
        rows = data.draw(st.lists(st.integers(0, count - 1), unique=True))
        available = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))), dtype=np.int64)
        utility = data.draw(st.lists(st.floats(0, 100), min_size=len(rows), max_size=len(rows)))
        ledger = heard(make_ledger([100] * count), rows, over_count=1.0, over_sumsq=np.array(utility))
        exploration, wanted = data.draw(st.floats(0, 1)), data.draw(st.integers(1, 35))
        setup, state = oort_world(
            ledger, exploration, 50.0, clients_per_round=wanted, seed=data.draw(st.integers(0, 99))
        )
        with Unchanged(setup, state, available):
            chosen = OverThresholdUtility().select_clients(setup, state, available)
        assert len(chosen) == min(wanted, len(available))
        assert np.array_equal(chosen, np.unique(chosen))
        assert np.isin(chosen, available).all()
        assert np.array_equal(chosen, OverThresholdUtility().select_clients(setup, state, available))

    def test_differs_from_round_to_round_and_from_seed_to_seed(self) -> None:
        ledger = known_clients([1.0] * 50)
        setup, state = oort_world(ledger)
        first = OverThresholdUtility().select_clients(setup, state, np.arange(50))
        assert not np.array_equal(
            first, OverThresholdUtility().select_clients(setup, replace(state, round=11), np.arange(50))
        )
        assert not np.array_equal(
            first, OverThresholdUtility().select_clients(replace(setup, seed=1), state, np.arange(50))
        )

    def test_is_uniform_while_nobody_is_known(self) -> None:
        ledger = make_ledger([100] * 5, network_s=[1.0, 2.0, 3.0, 4.0, 5.0])
        drawn = draws(ledger, OverThresholdUtility(), 2000, exploration=0.9, clients_per_round=2)
        assert stats.chisquare(drawn.sum(axis=0)).pvalue > 0.001

    def test_never_draws_below_the_cut_off(self) -> None:
        # Rank K (1 - exploration) = 2 scores 90: only 85.5 and more take part.
        ledger = known_clients([100.0, 95.0, 90.0, 87.0, 80.0, 1.0])
        drawn = draws(ledger, replace(PLAIN, cutoff=0.95), 200, clients_per_round=2)
        assert (drawn[:, :4].sum(axis=0) > 0).all()
        assert not drawn[:, 4:].any()

    def test_a_cut_off_of_zero_lets_everybody_take_part(self) -> None:
        ledger = known_clients([100.0, 95.0, 90.0, 87.0, 80.0, 50.0])
        assert (draws(ledger, replace(PLAIN, cutoff=0.0), 200, clients_per_round=2).sum(axis=0) > 0).all()

    def test_draws_in_proportion_to_score(self) -> None:
        ledger = known_clients([100.0, 200.0, 300.0, 400.0])
        policy = replace(PLAIN, cutoff=0.0)
        drawn = draws(ledger, policy, 2000, clients_per_round=1)
        share = policy.scores(*oort_world(ledger), np.arange(4))
        assert stats.chisquare(drawn.sum(axis=0), 2000 * share / share.sum()).pvalue > 0.001

    def test_draws_pairs_as_one_after_the_other_without_replacement(self) -> None:
        ledger = known_clients([100.0, 200.0, 300.0, 400.0])
        policy = replace(PLAIN, cutoff=0.0)
        drawn = draws(ledger, policy, 2000, clients_per_round=2)
        share = policy.scores(*oort_world(ledger), np.arange(4))
        p = share / share.sum()
        pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
        chance = [p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs]
        seen = [int((drawn[:, i] & drawn[:, j]).sum()) for i, j in pairs]
        assert stats.chisquare(seen, 2000 * np.array(chance)).pvalue > 0.001

    def test_explores_the_fastest_first(self) -> None:
        ledger = heard(make_ledger([100] * 8, network_s=[1, 2, 9, 4, 8, 5, 7, 6]), [0, 1])
        setup, state = oort_world(ledger, exploration=0.75, clients_per_round=4)
        chosen = OverThresholdUtility().select_clients(setup, state, np.arange(8))
        assert sorted(set(chosen) - {0, 1}) == [3, 5, 7]
        assert len(set(chosen) & {0, 1}) == 1

    def test_expects_an_unknown_client_to_train_all_its_samples(self) -> None:
        ledger = heard(make_ledger([100, 500, 30, 400, 20]), [0])
        drawn = draws(ledger, OverThresholdUtility(), 20, exploration=0.75, clients_per_round=3)
        assert drawn.all(axis=0).tolist() == [False, False, True, True, True]

    def test_breaks_ties_of_speed_at_random(self) -> None:
        ledger = heard(make_ledger([100] * 6, network_s=[1, 5, 5, 5, 5, 9]), [0])
        drawn = draws(ledger, OverThresholdUtility(), 400, exploration=0.9, clients_per_round=2)
        assert not drawn[:, 5].any()
        assert stats.chisquare(drawn[:, 1:5].sum(axis=0), np.full(4, drawn[:, 1:5].sum() / 4)).pvalue > 0.001

    @pytest.mark.parametrize(
        ("exploration", "exploited"), [(0.9, 1), (0.8, 2), (0.7, 3), (0.5, 5), (0.0, 10), (1.0, 0)]
    )
    def test_exploits_the_share_that_does_not_explore(self, exploration: float, exploited: int) -> None:
        ledger = heard(make_ledger([100] * 40), range(20))
        setup, state = oort_world(ledger, exploration, clients_per_round=10)
        assert (OverThresholdUtility().select_clients(setup, state, np.arange(40)) < 20).sum() == exploited

    def test_a_shortage_of_known_clients_is_filled_with_unknown_ones(self) -> None:
        ledger = heard(make_ledger([100] * 10), [0])
        setup, state = oort_world(ledger, exploration=0.0, clients_per_round=5)
        chosen = OverThresholdUtility().select_clients(setup, state, np.arange(10))
        assert len(chosen) == 5
        assert 0 in chosen

    def test_a_shortage_of_unknown_clients_is_filled_with_known_ones(self) -> None:
        ledger = heard(make_ledger([100] * 10), range(9))
        setup, state = oort_world(ledger, exploration=0.9, clients_per_round=5)
        chosen = OverThresholdUtility().select_clients(setup, state, np.arange(10))
        assert len(chosen) == 5
        assert 9 in chosen

    @pytest.mark.parametrize("exploration", [0.0, 0.5, 0.9])
    @pytest.mark.parametrize("rows", [[], [0, 1], [0, 1, 2, 3, 4, 5]])
    @pytest.mark.parametrize("wanted", [6, 7, 100])
    def test_takes_everybody_when_k_is_no_smaller(self, wanted: int, rows: list[int], exploration: float) -> None:
        setup, state = oort_world(heard(make_ledger(), rows), exploration, clients_per_round=wanted)
        assert OverThresholdUtility().select_clients(setup, state, np.arange(6)).tolist() == list(range(6))

    def test_takes_everybody_of_a_large_federation_too(self) -> None:
        setup, state = oort_world(known_clients([1.0] * 12_000), clients_per_round=12_000)
        assert len(OverThresholdUtility().select_clients(setup, state, np.arange(12_000))) == 12_000

    def test_nobody_available_gives_nobody(self) -> None:
        setup, state = oort_world(known_clients([1.0] * 3))
        assert OverThresholdUtility().select_clients(setup, state, np.zeros(0, dtype=np.int64)).tolist() == []

    @pytest.mark.parametrize("share", [0.01, 1.0])
    def test_a_million_clients_finish(self, million: Ledger, share: float) -> None:
        rng = np.random.default_rng(0)
        rows = np.flatnonzero(rng.random(len(million.clients)) < share)
        values = {"over_count": rng.uniform(1, 500, len(rows)), "over_sumsq": rng.uniform(0, 900, len(rows))}
        ledger = heard(million, rows.tolist(), **values)
        setup, state = oort_world(ledger, 0.3 if share < 1 else 0.0, 100.0, clients_per_round=100)
        chosen = OverThresholdUtility().select_clients(setup, state, np.arange(len(ledger.clients)))
        assert len(set(chosen.tolist())) == 100


class TestObserve:
    def test_starts_at_the_given_exploration_and_the_mean_completion_time(self) -> None:
        setup = make_setup(make_ledger([100, 55]))  # with a forward pass: 65 s and 43 s
        assert OverThresholdUtility(exploration=0.7).init(setup) == OverThresholdState(0.7, 54.0)

    def test_exploration_decays_until_its_least(self) -> None:
        ledger = heard(make_ledger(), [0])
        policy = OverThresholdUtility(exploration_decay=0.5, exploration_min=0.2)
        setup, state = oort_world(ledger, exploration=0.9, preferred_s=50.0)
        path = []
        for _ in range(4):
            state = replace(state, clients=policy.observe(setup, state, make_result([make_report("c0")])))
            path.append(state.clients.exploration)
        assert path == pytest.approx([0.45, 0.225, 0.1125, 0.1125])
        assert state.clients.preferred_s == 50.0

    def test_exploration_ends_once_everybody_has_succeeded(self) -> None:
        setup, state = oort_world(heard(make_ledger(), range(6)), exploration=0.9)
        assert OverThresholdUtility().observe(setup, state, make_result()).exploration == 0.0
        setup, state = oort_world(heard(make_ledger(), range(5)), exploration=0.9)
        assert OverThresholdUtility().observe(setup, state, make_result()).exploration > 0


def draws(
    ledger: Ledger, policy: OverThresholdUtility, times: int, exploration: float = 0.0, **setup: Any
) -> NDArray[np.bool_]:
    """A row per draw, a column per client: was it chosen? Every draw has a seed of its own."""
    base, state = oort_world(ledger, exploration, **setup)
    everybody = np.arange(len(ledger.clients))
    chosen = np.zeros((times, len(everybody)), dtype=bool)
    for seed in range(times):
        chosen[seed, policy.select_clients(replace(base, seed=seed), state, everybody)] = True
    return chosen


def scores(ledger: Ledger, policy: OverThresholdUtility, **state: Any) -> FloatArray:
    return policy.scores(*oort_world(ledger, **state), np.arange(len(ledger.clients)))


"""Neither clipped nor scaled."""


def test_is_the_papers_statistical_utility() -> None:
    ledger = heard(make_ledger([100] * 2), [0, 1], over_count=[4.0, 9.0], over_sumsq=[10.0, 3.0])
    temporal = math.sqrt(0.1 * math.log(11))
    expected = [n * math.sqrt(squares / n) + temporal for n, squares in [(4, 10.0), (9, 3.0)]]
    assert scores(ledger, PLAIN) == pytest.approx(expected)


def test_scales_utilities_to_between_zero_and_one() -> None:
    temporal = math.sqrt(0.1 * math.log(11))
    actual = scores(known_clients([2.0, 3.0, 6.0]), OverThresholdUtility(clip=1.0))
    assert actual == pytest.approx(np.array([0.0, 0.25, 1.0]) + temporal)


def test_clips_utilities_at_the_quantile() -> None:
    actual = scores(known_clients([*range(19), 1000.0]), replace(PLAIN, clip=0.9))
    assert actual[18] == actual[19] == actual.max()
    assert (np.diff(actual[:19]) > 0).all()


def test_adds_more_the_longer_ago_a_client_took_part() -> None:
    actual = scores(known_clients([0.0] * 3, last_round=[9, 4, 1]), PLAIN)
    assert actual == pytest.approx([math.sqrt(0.1 * math.log(11) / last) for last in (9, 4, 1)])


def test_punishes_only_what_is_slower_than_preferred() -> None:
    network_s = np.array([10.0, 50.0, 150.0])  # and 50 s of training
    ledger = replace(known_clients([1000.0] * 3), network_s=network_s)
    fast, equal, slow = scores(ledger, replace(PLAIN, alpha=2.0), preferred_s=100.0)
    assert fast == equal
    assert slow == pytest.approx(equal * (100 / 200) ** 2)


def test_expects_the_time_of_the_samples_trained_lately() -> None:
    ledger = known_clients([1000.0] * 2)
    ledger = replace(ledger, recent_trained=np.array([[100.0] * 5, [10.0] * 5]))  # 60 s and 15 s in all
    large, small = scores(ledger, replace(PLAIN, alpha=1.0), preferred_s=30.0)
    assert large == pytest.approx(small / 2)


def test_alpha_zero_does_not_punish() -> None:
    ledger = replace(known_clients([1.0] * 2), network_s=np.array([10.0, 1e6]))
    fast, slow = scores(ledger, replace(PLAIN, alpha=0.0), preferred_s=1.0)
    assert fast == slow


def test_equal_utilities_are_as_good_as_any() -> None:
    temporal = math.sqrt(0.1 * math.log(11))
    assert scores(known_clients([0.0] * 4), OverThresholdUtility()) == pytest.approx([1 + temporal] * 4)


@given(
    st.lists(st.tuples(st.floats(-10, 1e6), st.floats(-10, 1e9)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 1000),
)
def test_is_finite_and_positive_whatever_noise_did(
    released: list[tuple[float, float]], normalise: bool, round: int
) -> None:
    count, squares = zip(*released, strict=True)
    ledger = heard(make_ledger([100] * len(count)), range(len(count)), over_count=count, over_sumsq=squares)
    setup, state = oort_world(ledger, preferred_s=20.0)
    actual = OverThresholdUtility(normalise=normalise).scores(setup, replace(state, round=round), np.arange(len(count)))
    assert np.isfinite(actual).all()
    assert (actual > 0).all()
