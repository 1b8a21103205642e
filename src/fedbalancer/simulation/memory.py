"""What every simulated client keeps on its device between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.memory import ClientMemory
from fedbalancer.core.types import Ledger, Weights


class Memories(Mapping[str, ClientMemory]):
    """The memories of all clients in columns of twenty bytes per client, and what each list takes. The engine reads and
    writes them by ledger row; as a mapping they show one client's at a time.

    A list is replaced, never changed, so that clients may share one.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._clients, self._position = ledger.clients, ledger.position
        self._batch_s_sum = ledger.batch_s_sum.copy()
        self._batch_s_count = ledger.batch_s_count.copy()
        self._losses: NDArray[Any] = np.full(len(ledger.clients), None, dtype=object)
        self._residuals: dict[int, Weights] = {}
        self._uploads_s: dict[int, tuple[float, ...]] = {}

    def __getitem__(self, client: str) -> ClientMemory:
        return self.of(self._position[client])

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def of(self, row: int) -> ClientMemory:
        """What the client of a ledger row remembers."""
        total_s, count = float(self._batch_s_sum[row]), int(self._batch_s_count[row])
        kept = self._residuals.get(row), self._uploads_s.get(row, ())
        return ClientMemory(self._losses[row], total_s, count, *kept)

    def put(self, row: int, memory: ClientMemory) -> None:
        """Put a memory in the place of the old one."""
        self._losses[row] = memory.losses
        self._batch_s_sum[row], self._batch_s_count[row] = memory.batch_s_sum, memory.batch_s_count
        if memory.residual is not None:
            self._residuals[row] = memory.residual
        else:
            self._residuals.pop(row, None)
        if memory.uploads_s:
            self._uploads_s[row] = memory.uploads_s
        else:
            self._uploads_s.pop(row, None)

    def to_arrays(self, with_losses: bool = True) -> dict[str, Any]:
        """Everything as six arrays, by row; a client without a list has length -1, and so has every client unless
        `with_losses`. Uploads are two more, a row of each upload and its seconds, where somebody remembers any."""
        length = np.fromiter(
            (len(one) if with_losses and one is not None else -1 for one in self._losses), np.int64, len(self)
        )
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
            **self._uploads(),
        }

    def _uploads(self) -> dict[str, Any]:
        pairs = [(row, seconds) for row, seen in sorted(self._uploads_s.items()) for seconds in seen]
        if not pairs:
            return {}
        rows, seconds = zip(*pairs, strict=True)
        return {"upload_row": np.array(rows, dtype=np.int64), "upload_s": np.array(seconds)}

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
        self._uploads_s = {}
        if "upload_row" in arrays:
            for row, seconds in zip(arrays["upload_row"].tolist(), arrays["upload_s"].tolist(), strict=True):
                self._uploads_s[row] = (*self._uploads_s.get(row, ()), seconds)
