"""The memory of a client between rounds, in Flower's `context.state` and in a file.

`context.state` lives in the memory of a SuperNode and is lost when it stops, so the same content goes into a file. Both
are keyed by run, client and a fingerprint of the data: a list for other data is not used.
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

from fedbalancer.client.round import ClientMemory
from fedbalancer.core.files import cache_folder, write_bytes
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, Context

FOLDER, FOLDER_KEY = "FEDBALANCER_CLIENT_FOLDER", "fedbalancer-folder"
"""Folder of the file: this environment variable, or this key of the node configuration; `off` for no file."""

_STATE, _KEY = "fedbalancer.memory", "fedbalancer.key"
_OF_METHOD, _PENDING = "state.", "pending_state."
"""Prefixes of the arrays that a method keeps on the client."""
_log = logging.getLogger("flwr.fedbalancer")


@dataclass(frozen=True, eq=False)
class SavedMemory:
    """The memory of a client, and the one that replaces it once the server has accepted the client's report.

    Args:
        now: The current memory.
        pending: The memory after the last report.
        pending_round: Round of that report; 0 without one.
        saved: How often the memory was saved; the larger number is newer.
    """

    now: ClientMemory = field(default_factory=ClientMemory)
    pending: ClientMemory | None = None
    pending_round: int = 0
    saved: int = 0

    def confirmed(self, accepted_round: int) -> ClientMemory:
        """Return the pending memory if the server accepted its round, otherwise the current one.

        A report that came too late changes nothing, as in the simulator.
        """
        taken = self.pending is not None and self.pending_round == accepted_round
        return self.pending if taken and self.pending is not None else self.now

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the content as arrays."""
        counts = np.array([self.now.batch_s_count, self.pending_round, self.saved], dtype=np.int64)
        lists = {"losses": self.now.losses, "residual": self.now.residual}
        if self.pending is not None:
            lists |= {"pending_losses": self.pending.losses, "pending_residual": self.pending.residual}
        present = {name: values for name, values in lists.items() if values is not None}
        present |= {f"{_OF_METHOD}{name}": values for name, values in self.now.state.items()}
        if self.pending is not None:
            present |= {f"{_PENDING}{name}": values for name, values in self.pending.state.items()}
        return {"batch_s_sum": np.array([self.now.batch_s_sum]), "counts": counts, **present}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], size: int) -> SavedMemory | None:
        """Return the memory in these arrays; None if they do not fit a client with `size` samples."""
        try:
            count, pending_round, saved = (int(value) for value in arrays["counts"])
            total_s = float(arrays["batch_s_sum"][0])
        except (KeyError, ValueError, IndexError, TypeError):
            return None
        lists = {name: np.array(arrays[name]) for name in arrays if name not in ("counts", "batch_s_sum")}
        if any(lists[name].shape != (size,) for name in ("losses", "pending_losses") if name in lists):
            return None
        kept = {
            prefix: {name.removeprefix(prefix): lists[name] for name in lists if name.startswith(prefix)}
            for prefix in (_OF_METHOD, _PENDING)
        }
        now = ClientMemory(lists.get("losses"), total_s, count, lists.get("residual"), state=kept[_OF_METHOD])
        pending = replace(
            now, losses=lists.get("pending_losses"), residual=lists.get("pending_residual"), state=kept[_PENDING]
        )
        return cls(now, pending if pending_round else None, pending_round, saved)


def memory_folder(named: str = "") -> Path | None:
    """Return the folder of this device's loss lists; None if none are kept.

    Args:
        named: Folder from the node configuration. Default: the environment variable, or the user's cache folder.
    """
    named = named or os.environ.get(FOLDER, "")
    if named == "off":
        return None
    return Path(named).expanduser() if named else cache_folder() / "flower"


def list_memory_files(folder: Path) -> list[Path]:
    """Return the loss lists in a folder. Other files, recognised by their metadata, are left out."""
    files = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safetensors.safe_open(file, "numpy") as opened:
                ours = (opened.metadata() or {}).get("key") == file.stem
        except (OSError, safetensors.SafetensorError):
            continue
        files += [file] if ours else []
    return files


@dataclass(frozen=True)
class MemoryStore:
    """Loads and saves the memory of one client in one run.

    Args:
        context: Flower's context of the node.
        run_key: Name of the run.
        client: Id of the client.
        size: Its number of samples.
        fingerprint: Identifies its data.
    """

    context: Context
    run_key: str
    client: str
    size: int
    fingerprint: str = ""

    @property
    def key(self) -> str:
        """Hash of run, client, size and fingerprint."""
        name = "\x1f".join((self.run_key, self.client, str(self.size), self.fingerprint))
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    @property
    def file(self) -> Path | None:
        """The file of the memory; None if none is kept."""
        folder = memory_folder(str(self.context.node_config.get(FOLDER_KEY, "")))
        return None if folder is None else folder / f"{self.key}.safetensors"

    def load(self) -> SavedMemory:
        """Return the newer of the two copies, or an empty memory."""
        copies = [memory for memory in (self._from_state(), self._from_file()) if memory is not None]
        return max(copies, key=lambda memory: memory.saved, default=SavedMemory())

    def save(self, memory: SavedMemory) -> None:
        """Save both copies. If the disk cannot be written, the list is lost at a restart, but the round continues."""
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
