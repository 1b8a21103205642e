"""Algorithm 1 and its variants."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.client.samples import OverThreshold, OverThresholdBatch, RandomSamples, group_sizes, max_trainable_size
from fedbalancer.core.types import FloatArray, IndexArray, Order

shares = st.sampled_from([0.5, 0.6, 0.7, 0.75, 0.9, 1.0]) | st.floats(0.5, 1.0)
losses_or_unknown = st.floats(0, 4) | st.just(math.nan)


def select(losses: FloatArray, order: Order, p: float = 1.0, batch_s: float = 1.0, seed: int = 0) -> IndexArray:
    found = OverThreshold(p).select(len(losses), losses, batch_s, order, np.random.default_rng(seed))
    assert found is not None
    return found


def fitting(samples: int, **changes: Any) -> Order:
    """An order whose deadline lets a client with batches of 1 s train this many samples for all epochs."""
    return make_order(deadline_s=5.0 * (samples // 10) + 0.5, **changes)


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[FloatArray, float, int, float]:
    """Losses, a threshold, a number S that fits the deadline, and p."""
    losses = np.array(draw(st.lists(losses_or_unknown, min_size=1, max_size=60)))
    return losses, draw(st.floats(0, 4)), 10 * draw(st.integers(0, 6)), draw(shares)


class TestSizes:
    @given(cases(), st.integers(0, 5))
    def test_exactly_l_samples_and_a_share_p_of_them_over_the_threshold(
        self, case: tuple[FloatArray, float, int, float], seed: int
    ) -> None:
        losses, threshold, fits, p = case
        with Unchanged(losses):
            chosen = select(losses, fitting(fits, loss_threshold=threshold), p, seed=seed)
        over = set(np.flatnonzero(~(losses < threshold)).tolist())
        length = min(max(fits, len(over), 1), len(losses))
        assert len(chosen) == length
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert set(chosen.tolist()) <= set(range(len(losses)))
        if fits >= len(losses):
            return
        under = len(losses) - len(over)
        from_over = len(over & set(chosen.tolist()))
        wanted_under = math.floor(length * (1 - p) + 1e-9)
        if wanted_under > under:
            assert length - from_over == under  # UT is too small: the rest comes from OT
        elif length - wanted_under > len(over):
            assert from_over == len(over)  # OT is too small: the rest comes from UT
        else:
            assert length - from_over == wanted_under

    @given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 200), shares)
    def test_a_shortage_in_one_group_is_filled_from_the_other(
        self, wanted: int, over: int, under: int, p: float
    ) -> None:
        wanted = min(wanted, over + under)
        from_over, from_under = group_sizes(wanted, over, under, p)
        assert from_over + from_under == wanted
        assert 0 <= from_over <= over
        assert 0 <= from_under <= under

    @pytest.mark.parametrize(("p", "expected"), [(1.0, (10, 0)), (0.9, (9, 1)), (0.7, (7, 3)), (0.5, (5, 5))])
    def test_a_round_share_is_not_lost_to_rounding(self, p: float, expected: tuple[int, int]) -> None:
        assert group_sizes(10, 100, 100, p) == expected


class TestSelection:
    def test_takes_everything_that_fits(self) -> None:
        losses = np.linspace(0, 1, 20)
        assert select(losses, fitting(20, loss_threshold=0.9)).tolist() == list(range(20))
        assert select(losses, make_order(deadline_s=math.inf, loss_threshold=0.9)).tolist() == list(range(20))

    def test_takes_exactly_ot_when_nothing_more_fits(self) -> None:
        losses = np.array([0.1, 0.5, 0.9, 0.4, 0.5])
        assert select(losses, fitting(0, loss_threshold=0.5)).tolist() == [1, 2, 4]

    def test_fills_up_with_ut_to_what_fits(self) -> None:
        losses = np.concatenate([np.full(25, 0.1), np.full(5, 0.9)])
        chosen = select(losses, fitting(20, loss_threshold=0.5))
        assert len(chosen) == 20
        assert set(range(25, 30)) <= set(chosen.tolist())

    def test_takes_one_sample_when_none_is_over_and_nothing_fits(self) -> None:
        assert len(select(np.array([0.1, 0.2, 0.3]), fitting(0, loss_threshold=9.0))) == 1

    def test_an_unknown_loss_counts_as_over(self) -> None:
        losses = np.array([0.1, math.nan, 0.9, math.nan])
        assert select(losses, fitting(0, loss_threshold=0.5)).tolist() == [1, 2, 3]

    def test_a_loss_equal_to_the_threshold_is_over(self) -> None:
        assert select(np.array([0.5, 0.49]), fitting(0, loss_threshold=0.5)).tolist() == [0]

    def test_needs_no_list_while_the_threshold_is_zero(self) -> None:
        found = OverThreshold().select(30, None, 1.0, fitting(0), np.random.default_rng(0))
        assert found is not None
        assert found.tolist() == list(range(30))

    def test_needs_no_list_for_what_fits(self) -> None:
        found = OverThreshold().select(10, None, 1.0, fitting(10, loss_threshold=1.0), np.random.default_rng(0))
        assert found is not None
        assert found.tolist() == list(range(10))

    def test_asks_for_a_list_when_one_is_needed(self) -> None:
        order = fitting(0, loss_threshold=0.1)
        assert OverThreshold().select(30, None, 1.0, order, np.random.default_rng(0)) is None

    def test_has_no_cap_to_tell(self) -> None:
        assert OverThreshold().cap(np.array([1, 2, 3])) is None

    def test_is_uniform_without_replacement_inside_each_group(self) -> None:
        losses = np.concatenate([np.full(12, 0.1), np.full(12, 0.9)])  # L = |OT| = 12, nine of OT and three of UT
        order = fitting(10, loss_threshold=0.5)
        seen = np.zeros(24)
        rng = np.random.default_rng(1)
        for _ in range(3000):
            found = OverThreshold(0.75).select(24, losses, 1.0, order, rng)
            seen[found] += 1
        assert seen[:12].sum() == 3000 * 3
        assert seen[12:].sum() == 3000 * 9
        # Draws without replacement vary less than a multinomial; scaled by the share left out, chi-square holds.
        for group, drawn in ((seen[:12], 3), (seen[12:], 9)):
            statistic = ((group - group.mean()) ** 2).sum() / group.mean() * (12 - 1) / (12 - drawn)
            assert 0.001 < stats.chi2.sf(statistic, 11) < 0.999


class TestMaxTrainableSize:
    @given(st.floats(0.01, 10), st.floats(0, 1000), st.integers(1, 10), st.integers(1, 100), st.integers(1, 5000))
    def test_is_the_most_whole_batches_that_fit(
        self, batch_s: float, deadline_s: float, epochs: int, batch_size: int, size: int
    ) -> None:
        found = max_trainable_size(batch_s, deadline_s, epochs, batch_size, size)
        assert 0 <= found <= size
        assert found == size or found % batch_size == 0
        batches = -(-found // batch_size)
        assert batches * batch_s * epochs <= deadline_s * (1 + 1e-9)
        if found < size:
            assert (batches + 1) * batch_s * epochs > deadline_s * (1 - 1e-9)

    def test_without_a_deadline_everything_fits(self) -> None:
        assert max_trainable_size(1.0, math.inf, 5, 10, 123) == 123


def select_batch(losses: FloatArray, p: float = 1.0, seed: int = 0, **order: Any) -> IndexArray:
    found = OverThresholdBatch(p).select(len(losses), losses, 1.0, make_order(**order), np.random.default_rng(seed))
    assert found is not None
    return found


@given(
    st.lists(st.floats(0, 4) | st.just(math.nan), min_size=1, max_size=60),
    st.floats(0, 4),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([0.5, 0.75, 0.9, 1.0]),
)
def test_a_batch_for_each_epoch_and_a_share_p_over_the_threshold(
    losses: list[float], threshold: float, batch_size: int, epochs: int, p: float
) -> None:
    values = np.array(losses)
    with Unchanged(values):
        chosen = select_batch(values, p, loss_threshold=threshold, batch_size=batch_size, epochs=epochs).tolist()
    length = min(batch_size * epochs, len(losses))
    assert len(chosen) == length
    assert chosen == sorted(set(chosen))
    over = set(np.flatnonzero(~(values < threshold)).tolist())
    under = len(losses) - len(over)
    wanted_over = length - min(math.floor(length * (1 - p) + 1e-9), under)
    assert len(over & set(chosen)) == min(wanted_over, len(over))


def test_the_deadline_plays_no_part() -> None:
    losses = np.linspace(0, 1, 200)
    for deadline_s in (1.0, 100.0, math.inf):
        assert len(select_batch(losses, loss_threshold=0.9, deadline_s=deadline_s)) == 50


def test_takes_the_samples_over_the_threshold_first() -> None:
    losses = np.concatenate([np.full(100, 0.1), np.full(60, 0.9)])
    assert (select_batch(losses, loss_threshold=0.5) >= 100).all()
    few = np.concatenate([np.full(100, 0.1), np.full(7, 0.9)])
    assert set(range(100, 107)) <= set(select_batch(few, loss_threshold=0.5).tolist())


def test_is_uniform_while_there_is_no_threshold() -> None:
    seen, rng, order = np.zeros(20), np.random.default_rng(0), make_order(batch_size=2, epochs=2)
    for _ in range(3000):
        seen[OverThresholdBatch(0.5).select(20, np.arange(20.0), 1.0, order, rng)] += 1
    assert seen.sum() == 3000 * 4
    # Draws without replacement vary less than a multinomial; scaled by the share left out, chi-square holds.
    statistic = ((seen - seen.mean()) ** 2).sum() / seen.mean() * (20 - 1) / (20 - 4)
    assert 0.001 < stats.chi2.sf(statistic, 19) < 0.999


@pytest.mark.parametrize(("size", "needed"), [(51, True), (50, False), (3, False)])
def test_asks_for_a_list_only_where_there_is_a_choice(size: int, needed: bool) -> None:
    for threshold in (0.0, 0.1):
        order = make_order(loss_threshold=threshold)
        found = OverThresholdBatch().select(size, None, 1.0, order, np.random.default_rng(0))
        assert (found is None) == needed
        if found is not None:
            assert found.tolist() == list(range(size))


def test_has_no_cap_to_tell() -> None:
    assert OverThresholdBatch().cap(np.array([1, 2, 3])) is None


@given(
    st.none() | st.lists(st.floats(0, 4), min_size=30, max_size=30),
    st.floats(0, 4),
    st.floats(1, 80),
    st.sampled_from([0.5, 0.8, 1.0]),
    st.integers(0, 9),
)
def test_the_number_is_that_of_algorithm_1(
    losses: list[float] | None, threshold: float, deadline_s: float, p: float, seed: int
) -> None:
    order = make_order(loss_threshold=threshold, deadline_s=deadline_s)
    values = None if losses is None else np.array(losses)
    chosen, alike = (
        policy.select(30, values, 1.0, order, np.random.default_rng(seed))
        for policy in (RandomSamples(), OverThreshold(p))
    )
    assert (chosen is None) == (alike is None)
    if chosen is not None and alike is not None:
        assert len(chosen) == len(alike)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert set(chosen.tolist()) <= set(range(30))


def test_every_sample_is_as_likely_whatever_its_loss() -> None:
    losses = np.concatenate([np.full(8, 0.1), np.full(4, 0.9)])  # |OT| = 4
    order, rng, seen = make_order(loss_threshold=0.5, deadline_s=1.0), np.random.default_rng(0), np.zeros(12)
    for _ in range(3000):
        seen[RandomSamples().select(12, losses, 1.0, order, rng)] += 1
    assert seen.sum() == 3000 * 4
    # Draws without replacement vary less than a multinomial; scaled by the share left out, chi-square holds.
    statistic = ((seen - seen.mean()) ** 2).sum() / seen.mean() * (12 - 1) / (12 - 4)
    assert 0.001 < stats.chi2.sf(statistic, 11) < 0.999


def test_has_no_cap_to_tell_of_random() -> None:
    assert RandomSamples().cap(np.array([1, 2, 3])) is None
