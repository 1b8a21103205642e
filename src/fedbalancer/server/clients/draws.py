"""Weighted random draws without replacement, fast for a million clients."""

from __future__ import annotations

import numpy as np

from fedbalancer.core.types import FloatArray, IndexArray

MANY = 100_000
"""Number of clients from which a small draw does not generate a random number for every client."""


def draw_weighted(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Draw positions one by one without replacement, each in proportion to weight.

    Args:
        weights: Weight of every position. Positions of weight 0 come last.
        count: Number of positions to draw.
        rng: Random generator.

    Returns:
        The drawn positions.
    """
    if len(weights) >= MANY and 50 * count < len(weights):
        return draw_few_weighted(weights, count, rng)
    return pick_smallest(_random_keys(weights, rng), count, rng)


def draw_few_weighted(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Make the same draw with replacement and drop duplicates, which is faster for a small `count`.

    If too few distinct positions result because few hold most of the weight, the rest is drawn among the others.

    Args:
        weights: Weight of every position.
        count: Number of positions to draw.
        rng: Random generator.
    """
    total = np.cumsum(weights)
    drawn = np.searchsorted(total, rng.random(2 * count) * total[-1], side="right")
    unique, first_at = np.unique(drawn[drawn < len(weights)], return_index=True)
    unique = unique[np.argsort(first_at)[:count]]
    if len(unique) == count:
        return unique
    keys = _random_keys(weights, rng)
    keys[unique] = np.nan  # sorts last
    return np.concatenate([unique, pick_smallest(keys, count - len(unique), rng)])


def _random_keys(weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return Exp(1) / weight: the positions of the smallest keys are a draw in proportion to weight."""
    with np.errstate(divide="ignore"):
        return np.asarray(rng.exponential(size=len(weights)) / weights)


def pick_smallest(keys: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Return the positions of the `count` smallest keys, or of all if there are fewer. Ties are broken at random.

    Args:
        keys: One value per position.
        count: Number of positions.
        rng: Random generator for ties.
    """
    if count >= len(keys):
        return np.arange(len(keys))
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    limit = np.partition(keys, count - 1)[count - 1]
    sure, equal = np.flatnonzero(keys < limit), np.flatnonzero(keys == limit)
    return np.concatenate([sure, rng.choice(equal, count - len(sure), replace=False)])
