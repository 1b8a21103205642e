"""Random subsets of known size, drawn alike by client and server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import BadSetting


def require_share(share: float, owner: str) -> None:
    """A share to keep is over 0 and at most 1."""
    if not 0 < share <= 1:
        raise BadSetting(f"{owner}: share is {share}; it must be over 0 and at most 1")


def kept(size: int, share: float) -> int:
    """How many of `size` values a share of them is: the nearest whole number, at least one.

    >>> kept(10, 0.25), kept(10, 0.001), kept(0, 0.5)
    (2, 1, 0)
    """
    return min(max(round(size * share), 1), size)


def random_subset(size: int, count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask of exactly `count` of `size` places, every such subset as likely.

    Every place draws a key and the smallest keys win. A mask, not positions: the order in which a partition leaves its
    elements differs between processors, and client and server need not have the same kind. Equal keys at the limit
    (one draw in hundreds, for millions of places) are settled in favour of the first places.
    """
    if count == size:
        return np.ones(size, dtype=bool)
    keys = rng.integers(0, 2**32, size=size, dtype=np.uint32)
    limit = np.partition(keys, count - 1)[count - 1]
    chosen = np.asarray(keys <= limit)
    surplus = np.count_nonzero(chosen) - count
    if surplus:
        chosen[np.flatnonzero(keys == limit)[-surplus:]] = False
    return chosen
