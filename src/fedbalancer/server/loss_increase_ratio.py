"""For whom the model has become worse since it first heard of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbalancer.core.types import FloatArray

ROUNDING = 1e-6
"""First losses are kept in four bytes."""


def loss_increase_ratio(first: Any, now: Any) -> FloatArray:
    """How many times its first loss a client's loss is, at least 1; and 1 where either is not known, or was carried
    under 0 by noise.

    A client that pushes the model away from its own data says so itself: its losses rise where those of others fall.
    One that lies about that is chosen less where clients are chosen by their losses; and nobody can say it of another.

    >>> loss_increase_ratio([2.0, 2.0, np.nan, -1.0], [3.0, 1.0, 3.0, 3.0]).tolist()
    [1.5, 1.0, 1.0, 1.0]
    """
    first, now = np.asarray(first, dtype=np.float64), np.asarray(now, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        risen = (now > first * (1 + ROUNDING)) & (first > 0) & np.isfinite(now)
    ratio: FloatArray = np.divide(now, first, out=np.ones(now.shape), where=risen)
    return ratio
