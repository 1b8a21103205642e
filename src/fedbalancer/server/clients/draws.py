"""Random draws of clients, fast for a million of them."""

from __future__ import annotations

import numpy as np

from fedbalancer.core.types import FloatArray, IndexArray

MANY = 100_000
"""From so many on, a few are drawn without giving every one a random number."""


def in_proportion(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Positions drawn one after the other without replacement, each time in proportion to weight; those of no weight
    come last."""
    if len(weights) >= MANY and 50 * count < len(weights):
        return few_in_proportion(weights, count, rng)
    return smallest(_keys(weights, rng), count, rng)


def few_in_proportion(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """The same draw, made with replacement and without those that come again; where that is not enough, because few
    have most of the weight, the rest is drawn among the others."""
    total = np.cumsum(weights)
    drawn = np.searchsorted(total, rng.random(2 * count) * total[-1], side="right")
    found, first_at = np.unique(drawn[drawn < len(weights)], return_index=True)
    found = found[np.argsort(first_at)[:count]]
    if len(found) == count:
        return found
    keys = _keys(weights, rng)
    keys[found] = np.nan  # sorts last
    return np.concatenate([found, smallest(keys, count - len(found), rng)])


def _keys(weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Exp(1) / weight: the smallest of these are a draw in proportion to weight."""
    with np.errstate(divide="ignore"):
        return np.asarray(rng.exponential(size=len(weights)) / weights)


def smallest(keys: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Positions of the `count` smallest keys (all where there are no more), equal ones at random."""
    if count >= len(keys):
        return np.arange(len(keys))
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    limit = np.partition(keys, count - 1)[count - 1]
    sure, equal = np.flatnonzero(keys < limit), np.flatnonzero(keys == limit)
    return np.concatenate([sure, rng.choice(equal, count - len(sure), replace=False)])
