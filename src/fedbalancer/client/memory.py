"""What a client keeps on its device between rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedbalancer.core.types import FloatArray, IndexArray, Weights

UPLOADS = 16
"""How many uploads are remembered: enough to know a rare long one, few enough to notice another network."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """The loss list (None before it was first made), all batch latencies that the client has seen, the part of its
    updates that compression has kept back (None where it keeps nothing), and its last uploads, where it forecasts the
    next one by them."""

    losses: FloatArray | None = None
    batch_s_sum: float = 0.0
    batch_s_count: int = 0
    residual: Weights | None = None
    uploads_s: tuple[float, ...] = ()

    def batch_s(self, otherwise: float = float("nan")) -> float:
        """The mean batch latency; `otherwise` before the first was seen."""
        return self.batch_s_sum / self.batch_s_count if self.batch_s_count else otherwise

    def note_batch_s(self, batch_s: float) -> ClientMemory:
        """With one more batch latency."""
        return replace(self, batch_s_sum=self.batch_s_sum + batch_s, batch_s_count=self.batch_s_count + 1)

    def note_upload_s(self, upload_s: float) -> ClientMemory:
        """With one more upload."""
        return replace(self, uploads_s=(*self.uploads_s, upload_s)[-UPLOADS:])

    def note_report(self, losses: FloatArray, residual: Weights | None) -> ClientMemory:
        """With the list and the rest of a report."""
        return replace(self, losses=losses, residual=residual)


def update_losses(losses: FloatArray | None, size: int, seen: IndexArray, fresh: FloatArray) -> FloatArray:
    """The loss list after a training: samples that were seen get the loss of that forward pass, the others keep their
    old one. A sample never looked at is NaN, which every reader takes as "unknown". Where all were seen (`seen` is in
    ascending order) the fresh losses are the list, and nothing is copied.

    >>> update_losses(np.array([1.0, 2.0, 3.0]), 3, np.array([1]), np.array([0.5]))
    array([1. , 0.5, 3. ])
    """
    if len(seen) == size:
        return fresh
    result = np.full(size, np.nan) if losses is None else losses.copy()
    result[seen] = fresh
    return result
