"""Algorithm 1: which samples a client trains on."""

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

from fedbalancer.client.samples import OverThreshold
from fedbalancer.client.samples.threshold import group_sizes, max_trainable_size
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
