"""Sample selectors of the baselines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.samples import EverySample, HighestLoss
from fedbalancer.core.types import FloatArray


@pytest.mark.parametrize("losses", [None, np.array([0.0, 9.0, 1.0])])
@pytest.mark.parametrize("deadline_s", [0.0, 1e9])
def test_everything_whatever_the_order_says(losses: np.ndarray | None, deadline_s: float) -> None:
    order = make_order(deadline_s=deadline_s, loss_threshold=5.0, sample_cap=1)
    found = EverySample().select(3, losses, 1.0, order, np.random.default_rng(0))
    assert found is not None
    assert found.tolist() == [0, 1, 2]


def test_has_no_cap_to_tell() -> None:
    assert EverySample().cap(np.array([1, 2])) is None


RNG = np.random.default_rng(0)


def select(losses: FloatArray | None, size: int, cap: int | None) -> list[int] | None:
    found = HighestLoss().select(size, losses, 1.0, make_order(sample_cap=cap), RNG)
    return None if found is None else found.tolist()


def test_the_cap_is_the_whole_part_of_the_eightieth_percentile_of_sizes() -> None:
    har = [347, 341, 302, 325, 308, 281, 316, 323, 328, 366, 368, 360, 408, 321, 372, 409, 392, 376, 382, 344, 383]
    cap = HighestLoss().cap(np.array(har))
    assert cap == 382
    assert sum(max(size - cap, 0) for size in har) == 64  # as few as the baseline ever drops on this task
    assert HighestLoss(100.0).cap(np.array([1, 2, 9])) == 9


@pytest.mark.parametrize("cap", [None, 5, 6])
def test_clients_within_the_cap_train_everything_without_a_list(cap: int | None) -> None:
    assert select(None, 5, cap) == [0, 1, 2, 3, 4]


def test_bigger_clients_need_a_list() -> None:
    assert select(None, 5, 4) is None


@given(st.lists(st.floats(0, 10), min_size=3, max_size=40), st.integers(1, 40))
def test_takes_as_many_as_the_cap_with_the_highest_losses(losses: list[float], cap: int) -> None:
    values = np.array(losses)
    with Unchanged(values):
        chosen = select(values, len(losses), cap)
    assert chosen is not None
    assert len(chosen) == min(cap, len(losses))
    assert chosen == sorted(set(chosen))
    left = set(range(len(losses))) - set(chosen)
    assert all(losses[i] >= losses[j] for i in chosen for j in left)


def test_an_unknown_loss_ranks_first() -> None:
    assert select(np.array([9.0, math.nan, 1.0, 5.0]), 4, 2) == [0, 1]
