"""The client's loss list: one value a sample, kept on the client between rounds."""

from __future__ import annotations

import numpy as np

from fedbalancer.types import FloatArray, IndexArray


def updated_losses(losses: FloatArray | None, size: int, seen: IndexArray, fresh: FloatArray) -> FloatArray:
    """The list after a training: samples seen in the first local epoch get the loss of that forward pass, the others
    keep their old one. A sample never looked at is NaN, which every reader takes as "unknown".

    >>> updated_losses(np.array([1.0, 2.0, 3.0]), 3, np.array([1]), np.array([0.5]))
    array([1. , 0.5, 3. ])
    """
    result = np.full(size, np.nan) if losses is None else losses.copy()
    result[seen] = fresh
    return result
