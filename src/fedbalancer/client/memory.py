"""The client's memory between rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedbalancer.core.types import FloatArray, IndexArray, Weights

UPLOADS = 16
"""Number of uploads to remember: enough to include rare long ones, few enough to follow a change of network."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Everything that a client keeps on its device between rounds.

    Args:
        losses: Last known loss of every sample. None before the first.
        batch_s_sum: Sum of all measured batch latencies.
        batch_s_count: Number of these latencies.
        residual: Part of earlier updates that compression has not sent. None if nothing is kept.
        uploads_s: Durations of the last uploads, for clients that predict the next one.
    """

    losses: FloatArray | None = None
    batch_s_sum: float = 0.0
    batch_s_count: int = 0
    residual: Weights | None = None
    uploads_s: tuple[float, ...] = ()

    def batch_s(self, otherwise: float = float("nan")) -> float:
        """Return the mean batch latency, or `otherwise` before the first measurement."""
        return self.batch_s_sum / self.batch_s_count if self.batch_s_count else otherwise

    def note_batch_s(self, batch_s: float) -> ClientMemory:
        """Return the memory with one more batch latency."""
        return replace(self, batch_s_sum=self.batch_s_sum + batch_s, batch_s_count=self.batch_s_count + 1)

    def note_upload_s(self, upload_s: float) -> ClientMemory:
        """Return the memory with one more upload."""
        return replace(self, uploads_s=(*self.uploads_s, upload_s)[-UPLOADS:])

    def note_report(self, losses: FloatArray, residual: Weights | None) -> ClientMemory:
        """Return the memory after a report: its loss list and its residual."""
        return replace(self, losses=losses, residual=residual)


def update_losses(losses: FloatArray | None, size: int, seen: IndexArray, fresh: FloatArray) -> FloatArray:
    """Return the loss list after a training.

    Args:
        losses: Loss list before the training, or None.
        size: Number of samples.
        seen: Trained samples, in ascending order.
        fresh: Loss of each trained sample when it was first seen.

    Returns:
        The old list with fresh losses; NaN for samples that were never seen. If all samples were seen, `fresh` itself.

    Example:
        >>> update_losses(np.array([1.0, 2.0, 3.0]), 3, np.array([1]), np.array([0.5]))
        array([1. , 0.5, 3. ])
    """
    if len(seen) == size:
        return fresh
    result = np.full(size, np.nan) if losses is None else losses.copy()
    result[seen] = fresh
    return result
