"""A regression in NumPy, and data for it: no torch, so that a client starts quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEATURES = 6


def data(part: int, strong: tuple[int, ...] = ()) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples of one client: all share a truth, each has its own noise. If some features are `strong`, the others are
    so weak that little can be learned of them here."""
    rng = np.random.default_rng(part)
    x = rng.normal(size=(40 + 10 * part, FEATURES))
    if strong:
        x[:, [feature for feature in range(FEATURES) if feature not in strong]] *= 0.1
    return x, x @ np.arange(FEATURES) + rng.normal(0, 0.1, len(x))


def losses(weights: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((x @ weights - y) ** 2)
