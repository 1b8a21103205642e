"""What every simulated client keeps on its device between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbalancer.types import FloatArray


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """One client's loss list (None before it was first made) and all batch latencies that it has seen."""

    losses: FloatArray | None
    batch_s_sum: float
    batch_s_count: int

    @property
    def batch_s(self) -> float:
        return self.batch_s_sum / self.batch_s_count

    def timed(self, batch_s: float) -> ClientMemory:
        """The memory after a round in which a batch took `batch_s`."""
        return replace(self, batch_s_sum=self.batch_s_sum + batch_s, batch_s_count=self.batch_s_count + 1)


def to_arrays(memories: Mapping[str, ClientMemory]) -> dict[str, Any]:
    """All memories as four arrays, in the order of the mapping; a client without a list has length -1."""
    values = list(memories.values())
    lists = [memory.losses for memory in values if memory.losses is not None]
    return {
        "batch_s_sum": np.array([memory.batch_s_sum for memory in values], dtype=np.float64),
        "batch_s_count": np.array([memory.batch_s_count for memory in values], dtype=np.int64),
        "loss_length": np.array([-1 if m.losses is None else len(m.losses) for m in values], dtype=np.int64),
        "losses": np.concatenate(lists) if lists else np.zeros(0),
    }


def from_arrays(clients: tuple[str, ...], arrays: Mapping[str, Any]) -> dict[str, ClientMemory]:
    """The inverse of `to_arrays`."""
    ends = np.cumsum(np.maximum(arrays["loss_length"], 0))
    memories = {}
    for row, client in enumerate(clients):
        length = int(arrays["loss_length"][row])
        losses = None if length < 0 else np.array(arrays["losses"][ends[row] - length : ends[row]])
        memories[client] = ClientMemory(losses, float(arrays["batch_s_sum"][row]), int(arrays["batch_s_count"][row]))
    return memories
