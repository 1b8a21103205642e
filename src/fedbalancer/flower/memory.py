"""What a real client remembers between rounds: in Flower's `context.state`, and on its own disk.

`context.state` is in the memory of a SuperNode and dies with it, so the same goes into a file. Both are keyed by the
run, the client and a fingerprint of its data: a list that belongs to something else is no list.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedbalancer.client.memory import ClientMemory
from fedbalancer.core.files import cache_folder, write_bytes
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, Context

FOLDER, FOLDER_KEY = "FEDBALANCER_CLIENT_FOLDER", "fedbalancer-folder"
"""Where the file lies: this environment variable, or this key of the node's configuration; `off` keeps none."""

_STATE, _KEY = "fedbalancer.memory", "fedbalancer.key"
_log = logging.getLogger("flwr.fedbalancer")


@dataclass(frozen=True, eq=False)
class SavedMemory:
    """What a client remembers, and what it will remember once the server says that it took the report of a round."""

    now: ClientMemory = field(default_factory=ClientMemory)
    pending: ClientMemory | None = None
    pending_round: int = 0
    saved: int = 0

    def confirmed(self, accepted_round: int) -> ClientMemory:
        """What was pending, if the server took it; a report that came too late has changed nothing, as in the
        simulator."""
        taken = self.pending is not None and self.pending_round == accepted_round
        return self.pending if taken and self.pending is not None else self.now

    def arrays(self) -> dict[str, NDArray[Any]]:
        counts = np.array([self.now.batch_s_count, self.pending_round, self.saved], dtype=np.int64)
        lists = {"losses": self.now.losses, "residual": self.now.residual}
        if self.pending is not None:
            lists |= {"pending_losses": self.pending.losses, "pending_residual": self.pending.residual}
        given = {name: values for name, values in lists.items() if values is not None}
        return {"batch_s_sum": np.array([self.now.batch_s_sum]), "counts": counts, **given}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], size: int) -> SavedMemory | None:
        """The memory in these arrays; None if they cannot be one of a client with `size` samples."""
        try:
            count, pending_round, saved = (int(value) for value in arrays["counts"])
            total_s = float(arrays["batch_s_sum"][0])
        except (KeyError, ValueError, IndexError, TypeError):
            return None
        found = {name: np.array(arrays[name]) for name in arrays if name not in ("counts", "batch_s_sum")}
        if any(found[name].shape != (size,) for name in ("losses", "pending_losses") if name in found):
            return None
        now = ClientMemory(found.get("losses"), total_s, count, found.get("residual"))
        pending = replace(now, losses=found.get("pending_losses"), residual=found.get("pending_residual"))
        return cls(now, pending if pending_round else None, pending_round, saved)


def memory_folder(named: str = "") -> Path | None:
    """Where the loss lists of this device lie, unless `named`: as the environment says, or the user's cache folder.
    None if none are kept."""
    named = named or os.environ.get(FOLDER, "")
    if named == "off":
        return None
    return Path(named).expanduser() if named else cache_folder() / "flower"


def list_memory_files(folder: Path) -> list[Path]:
    """The loss lists in a folder: our files, by what they say of themselves, and nobody else's."""
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safetensors.safe_open(file, "numpy") as opened:
                ours = (opened.metadata() or {}).get("key") == file.stem
        except (OSError, safetensors.SafetensorError):
            continue
        found += [file] if ours else []
    return found


@dataclass(frozen=True)
class MemoryStore:
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
        folder = memory_folder(str(self.context.node_config.get(FOLDER_KEY, "")))
        return None if folder is None else folder / f"{self.key}.safetensors"

    def load(self) -> SavedMemory:
        """The newer of the two memories; an empty one where there is none."""
        found = [memory for memory in (self._from_state(), self._from_file()) if memory is not None]
        return max(found, key=lambda memory: memory.saved, default=SavedMemory())

    def save(self, memory: SavedMemory) -> None:
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

    def _from_state(self) -> SavedMemory | None:
        state = self.context.state
        if _STATE not in state or state.config_records[_KEY].get("key") != self.key:
            return None
        return SavedMemory.of({name: array.numpy() for name, array in state.array_records[_STATE].items()}, self.size)

    def _from_file(self) -> SavedMemory | None:
        file = self.file
        if file is None or not file.is_file():
            return None
        try:
            return SavedMemory.of(safetensors.numpy.load(file.read_bytes()), self.size)
        except (OSError, safetensors.SafetensorError) as error:
            _log.warning("the loss list in %s cannot be read: %s", file, error)
            return None
