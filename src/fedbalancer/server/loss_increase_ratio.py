"""The increase of clients' losses since their first report."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbalancer.core.types import FloatArray

ROUNDING = 1e-6
"""Tolerance, because first losses are stored in four bytes."""


def loss_increase_ratio(first: Any, now: Any) -> FloatArray:
    """Return each client's loss as a multiple of its first loss, at least 1.

    A client that pulls the model away from its own data reveals this itself: its loss rises while those of others fall.
    A client that hides the rise is selected less where selection depends on loss. No client can claim it of another.

    Args:
        first: First loss of each client.
        now: Current loss of each client.

    Returns:
        The ratios; 1 where a loss is unknown (NaN) or not positive because of noise.

    Example:
        >>> loss_increase_ratio([2.0, 2.0, np.nan, -1.0], [3.0, 1.0, 3.0, 3.0]).tolist()
        [1.5, 1.0, 1.0, 1.0]
    """
    first, now = np.asarray(first, dtype=np.float64), np.asarray(now, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        risen = (now > first * (1 + ROUNDING)) & (first > 0) & np.isfinite(now)
    ratio: FloatArray = np.divide(now, first, out=np.ones(now.shape), where=risen)
    return ratio
