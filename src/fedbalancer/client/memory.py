"""What a client keeps on its device between rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.types import FloatArray, IndexArray, Weights


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """The loss list (None before it was first made), all batch latencies that the client has seen, and the part of its
    updates that compression has kept back (None where it keeps nothing)."""

    losses: FloatArray | None = None
    batch_s_sum: float = 0.0
    batch_s_count: int = 0
    residual: Weights | None = None

    def batch_s(self, otherwise: float = float("nan")) -> float:
        """The mean batch latency; `otherwise` before the first was seen."""
        return self.batch_s_sum / self.batch_s_count if self.batch_s_count else otherwise

    def timed(self, batch_s: float) -> ClientMemory:
        """With one more batch latency."""
        return ClientMemory(self.losses, self.batch_s_sum + batch_s, self.batch_s_count + 1, self.residual)

    def reported(self, losses: FloatArray, residual: Weights | None) -> ClientMemory:
        """With the list and the rest of a report."""
        return ClientMemory(losses, self.batch_s_sum, self.batch_s_count, residual)


def updated_losses(losses: FloatArray | None, size: int, seen: IndexArray, fresh: FloatArray) -> FloatArray:
    """The loss list after a training: samples that were seen get the loss of that forward pass, the others keep their
    old one. A sample never looked at is NaN, which every reader takes as "unknown". Where all were seen (`seen` is in
    ascending order) the fresh losses are the list, and nothing is copied.

    >>> updated_losses(np.array([1.0, 2.0, 3.0]), 3, np.array([1]), np.array([0.5]))
    array([1. , 0.5, 3. ])
    """
    if len(seen) == size:
        return fresh
    result = np.full(size, np.nan) if losses is None else losses.copy()
    result[seen] = fresh
    return result
