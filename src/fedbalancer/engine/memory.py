"""What every simulated client keeps on its device between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.types import FloatArray, IndexArray, Ledger, Weights


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """One client's loss list (None before it was first made), all batch latencies that it has seen, and the part of its
    updates that compression has kept back (None where it keeps nothing)."""

    losses: FloatArray | None
    batch_s_sum: float
    batch_s_count: int
    residual: Weights | None = None

    @property
    def batch_s(self) -> float:
        return self.batch_s_sum / self.batch_s_count


class Memories(Mapping[str, ClientMemory]):
    """The memories of all clients in columns of twenty bytes a client, and what each list takes. The engine reads and
    writes them by ledger row; as a mapping they show one client's at a time.

    A list is replaced, never changed, so that clients may share one.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._clients, self._position = ledger.clients, ledger.position
        self._batch_s_sum = ledger.batch_s_sum.copy()
        self._batch_s_count = ledger.batch_s_count.copy()
        self._losses: NDArray[Any] = np.full(len(ledger.clients), None, dtype=object)
        self._residuals: dict[int, Weights] = {}

    def __getitem__(self, client: str) -> ClientMemory:
        row = self._position[client]
        total_s, count = float(self._batch_s_sum[row]), int(self._batch_s_count[row])
        return ClientMemory(self._losses[row], total_s, count, self._residuals.get(row))

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def batch_s(self, rows: IndexArray) -> FloatArray:
        """The mean of all batch latencies that each client has seen."""
        return self._batch_s_sum[rows] / self._batch_s_count[rows]

    def losses(self, row: int) -> FloatArray | None:
        """The loss list of one client."""
        found: FloatArray | None = self._losses[row]
        return found

    def residual(self, row: int) -> Weights | None:
        """What the client's compression has kept back."""
        return self._residuals.get(row)

    def keep(self, row: int, losses: FloatArray) -> None:
        """Put a loss list in the place of the old one."""
        self._losses[row] = losses

    def keep_back(self, row: int, residual: Weights | None) -> None:
        """Put what compression keeps back in the place of what it kept before."""
        if residual is not None:
            self._residuals[row] = residual
        else:
            self._residuals.pop(row, None)

    def timed(self, rows: IndexArray, batch_s: FloatArray) -> None:
        """Remember a round in which a batch took `batch_s` on each of these different clients."""
        self._batch_s_sum[rows] += batch_s
        self._batch_s_count[rows] += 1

    def to_arrays(self) -> dict[str, Any]:
        """Everything as six arrays, by row; a client without a list has length -1."""
        length = np.fromiter((-1 if one is None else len(one) for one in self._losses), np.int64, len(self))
        held = sorted(self._residuals)
        has_residual = np.zeros(len(self), dtype=bool)
        has_residual[held] = True
        return {
            "batch_s_sum": self._batch_s_sum.copy(),
            "batch_s_count": self._batch_s_count.copy(),
            "loss_length": length,
            "losses": np.concatenate([np.zeros(0), *self._losses[length >= 0]]),
            "has_residual": has_residual,
            "residuals": np.concatenate([np.zeros(0, dtype=np.float32), *(self._residuals[row] for row in held)]),
        }

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Take up what `to_arrays` gave."""
        self._batch_s_sum[:] = arrays["batch_s_sum"]
        self._batch_s_count[:] = arrays["batch_s_count"]
        self._losses[:] = None
        ends = np.cumsum(np.maximum(arrays["loss_length"], 0))
        for row in np.flatnonzero(np.asarray(arrays["loss_length"]) >= 0):
            self._losses[row] = np.array(arrays["losses"][ends[row] - arrays["loss_length"][row] : ends[row]])
        held = np.flatnonzero(arrays["has_residual"]).tolist()
        kept = np.array(arrays["residuals"]).reshape(len(held), -1) if held else ()
        self._residuals = dict(zip(held, kept, strict=True))
