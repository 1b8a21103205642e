"""Draws of clients: the right number, the right chances, equal keys at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.randomness import MANY, draw_few_weighted, draw_weighted, pick_smallest

few_values = st.lists(st.sampled_from([0.0, 1.0, 2.0, np.inf]) | st.floats(0, 10), max_size=40)


@given(few_values, st.integers(0, 45), st.integers(0, 9))
def test_no_key_left_out_is_smaller_than_one_taken(keys: list[float], count: int, seed: int) -> None:
    values = np.array(keys)
    taken = pick_smallest(values, count, np.random.default_rng(seed))
    assert len(taken) == len(set(taken.tolist())) == min(count, len(keys))
    left = np.delete(values, taken)
    if len(left) and len(taken):
        assert values[taken].max() <= left.min()


def test_equal_keys_are_taken_at_random() -> None:
    keys, rng = np.array([1.0, 1.0, 0.0, 1.0, 2.0, 1.0]), np.random.default_rng(0)
    seen = np.zeros(6)
    for _ in range(2000):
        seen[pick_smallest(keys, 2, rng)] += 1
    assert seen[2] == 2000
    assert seen[4] == 0
    assert stats.chisquare(seen[[0, 1, 3, 5]]).pvalue > 0.001


both_ways = pytest.mark.parametrize("draw", [draw_weighted, draw_few_weighted])


@both_ways
def test_pairs_are_drawn_one_after_the_other_in_proportion_to_weight(draw: Callable[..., Any]) -> None:
    weights, rng = np.array([1.0, 2.0, 3.0, 4.0]), np.random.default_rng(0)
    drawn = np.array([np.sort(draw(weights, 2, rng)) for _ in range(3000)])
    p = weights / weights.sum()
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    chance = [p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs]
    seen = [int((drawn == pair).all(axis=1).sum()) for pair in pairs]
    assert stats.chisquare(seen, 3000 * np.array(chance)).pvalue > 0.001


@both_ways
@pytest.mark.parametrize(("count", "never"), [(1, 2), (2, 2), (3, 0), (4, 0)])
def test_what_has_no_weight_comes_last(draw: Callable[..., Any], count: int, never: int) -> None:
    weights, rng = np.array([0.0, 5.0, 0.0, 1.0]), np.random.default_rng(0)
    taken = [set(draw(weights, count, rng).tolist()) for _ in range(50)]
    assert all(len(one) == count for one in taken)
    assert len({0, 2} - set().union(*taken)) == never
    if count >= 2:
        assert all({1, 3} <= one for one in taken)


@given(
    st.lists(st.sampled_from([0.0, 1e-9, 1.0, 1e9]), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 99)
)
def test_a_few_of_many_are_all_different_however_uneven_the_weights(
    weights: list[float], count: int, seed: int
) -> None:
    count = min(count, len(weights))
    taken = draw_few_weighted(np.array(weights), count, np.random.default_rng(seed)).tolist()
    assert len(taken) == len(set(taken)) == count
    assert set(taken) <= set(range(len(weights)))
    assert sum(weights[row] > 0 for row in taken) == min(count, sum(weight > 0 for weight in weights))


def test_many_are_drawn_in_proportion_too() -> None:
    weights, rng = np.resize([1.0, 2.0, 5.0, 0.0], MANY), np.random.default_rng(0)
    taken = np.concatenate([draw_weighted(weights, 100, rng) for _ in range(30)])
    seen = np.bincount(taken % 4, minlength=4)
    assert seen[3] == 0
    assert stats.chisquare(seen[:3], 3000 * np.array([1, 2, 5]) / 8).pvalue > 0.001
