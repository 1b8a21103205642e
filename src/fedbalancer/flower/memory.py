"""What a real client remembers between rounds: in Flower's `context.state`, and on its own disk.

`context.state` is in the memory of a SuperNode and dies with it, so the same goes into a file. Both are keyed by the
run, the client and a fingerprint of its data: a list that belongs to something else is no list.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedbalancer.files import write_bytes
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, Context
from fedbalancer.places import cache_folder
from fedbalancer.types import FloatArray, Weights

FOLDER, FOLDER_KEY = "FEDBALANCER_CLIENT_FOLDER", "fedbalancer-folder"
"""Where the file lies: this environment variable, or this key of the node's configuration; `off` keeps none."""

_STATE, _KEY = "fedbalancer.memory", "fedbalancer.key"
_log = logging.getLogger("flwr.fedbalancer")


@dataclass(frozen=True, eq=False)
class Memory:
    """The loss list (None before it was first made), all batch latencies seen, what compression has kept back, and
    after a report the list and the rest as they will be once the server says that it took it."""

    losses: FloatArray | None = None
    batch_s_sum: float = 0.0
    batch_s_count: int = 0
    residual: Weights | None = None
    pending_round: int = 0
    pending_losses: FloatArray | None = None
    pending_residual: Weights | None = None
    saved: int = 0

    def batch_s(self, otherwise: float) -> float:
        """Mean batch latency."""
        return self.batch_s_sum / self.batch_s_count if self.batch_s_count else otherwise

    def timed(self, batch_s: float) -> Memory:
        """With one more batch latency."""
        return replace(self, batch_s_sum=self.batch_s_sum + batch_s, batch_s_count=self.batch_s_count + 1)

    def settled(self, accepted_round: int) -> Memory:
        """What was pending becomes real if the server took it, and is forgotten if not: a report that came too late
        has changed nothing, as in the simulator."""
        plain = replace(self, pending_round=0, pending_losses=None, pending_residual=None)
        if not self.pending_round or self.pending_round != accepted_round:
            return plain
        losses = self.losses if self.pending_losses is None else self.pending_losses
        return replace(plain, losses=losses, residual=self.pending_residual)

    def arrays(self) -> dict[str, NDArray[Any]]:
        counts = np.array([self.batch_s_count, self.pending_round, self.saved], dtype=np.int64)
        lists = {name: getattr(self, name) for name in _LISTS}
        given = {name: values for name, values in lists.items() if values is not None}
        return {"batch_s_sum": np.array([self.batch_s_sum]), "counts": counts, **given}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], size: int) -> Memory | None:
        """The memory in these arrays; None if they cannot be one of a client with `size` samples."""
        try:
            count, pending, saved = (int(value) for value in arrays["counts"])
            lists = {name: np.array(arrays[name]) for name in _LISTS if name in arrays}
            if any(lists[name].shape != (size,) for name in ("losses", "pending_losses") if name in lists):
                return None
            return cls(batch_s_sum=float(arrays["batch_s_sum"][0]), batch_s_count=count, pending_round=pending,
                       saved=saved, **lists)  # fmt: skip
        except (KeyError, ValueError, IndexError, TypeError):
            return None


_LISTS = ("losses", "residual", "pending_losses", "pending_residual")


@dataclass(frozen=True)
class Keeper:
    """Where one client's memory of one run and one set of data is kept."""

    context: Context
    run_key: str
    client: str
    size: int
    fingerprint: str = ""

    @property
    def key(self) -> str:
        name = "\x1f".join((self.run_key, self.client, str(self.size), self.fingerprint))
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    @property
    def file(self) -> Path | None:
        named = str(self.context.node_config.get(FOLDER_KEY, "") or os.environ.get(FOLDER, ""))
        if named == "off":
            return None
        folder = Path(named).expanduser() if named else cache_folder() / "flower"
        return folder / f"{self.key}.safetensors"

    def load(self) -> Memory:
        """The newer of the two memories; an empty one where there is none."""
        found = [memory for memory in (self._from_state(), self._from_file()) if memory is not None]
        return max(found, key=lambda memory: memory.saved, default=Memory())

    def save(self, memory: Memory) -> None:
        """Keep it in both places. A disk that cannot be written costs the list at a restart, not the round."""
        numbered = replace(memory, saved=memory.saved + 1)
        arrays = {name: np.ascontiguousarray(values) for name, values in numbered.arrays().items()}
        state = self.context.state
        state[_KEY] = ConfigRecord({"key": self.key})
        state[_STATE] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
        file = self.file
        if file is None:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, safetensors.numpy.save(arrays, metadata={"key": self.key}))
        except OSError as error:
            _log.warning("the loss list cannot be kept in %s: %s", file, error)

    def _from_state(self) -> Memory | None:
        state = self.context.state
        if _STATE not in state or state.config_records[_KEY].get("key") != self.key:
            return None
        return Memory.of({name: array.numpy() for name, array in state.array_records[_STATE].items()}, self.size)

    def _from_file(self) -> Memory | None:
        file = self.file
        if file is None or not file.is_file():
            return None
        try:
            return Memory.of(safetensors.numpy.load(file.read_bytes()), self.size)
        except (OSError, safetensors.SafetensorError) as error:
            _log.warning("the loss list in %s cannot be read: %s", file, error)
            return None
