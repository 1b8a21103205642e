"""OortBalancer's samples: one batch an epoch, by the threshold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.client.samples import OverThresholdBatch
from fedbalancer.core.types import FloatArray, IndexArray


def select(losses: FloatArray, p: float = 1.0, seed: int = 0, **order: Any) -> IndexArray:
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
        chosen = select(values, p, loss_threshold=threshold, batch_size=batch_size, epochs=epochs).tolist()
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
        assert len(select(losses, loss_threshold=0.9, deadline_s=deadline_s)) == 50


def test_takes_the_samples_over_the_threshold_first() -> None:
    losses = np.concatenate([np.full(100, 0.1), np.full(60, 0.9)])
    assert (select(losses, loss_threshold=0.5) >= 100).all()
    few = np.concatenate([np.full(100, 0.1), np.full(7, 0.9)])
    assert set(range(100, 107)) <= set(select(few, loss_threshold=0.5).tolist())


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
