"""The journal of a run: one JSON line per round, append-only.

A checkpoint stores the length and the checksum of the journal. A resumed run truncates the journal to that length,
because the rounds after it run again. Other processes can follow the journal while it is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import sync_directory
from fedbalancer.store.codec import dumps, loads
from fedbalancer.store.contents import CHECKPOINT
from fedbalancer.store.tables import RunTables

JOURNAL = "journal.jsonl"


class Journal:
    """An open journal; use `open_journal` to make one. `size` is its length in bytes."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        # Unbuffered: a forked worker must not hold, and later write, a copy of bytes that wait in a buffer.
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(len(prefix))
        self._file.seek(len(prefix))
        self._hash = hashlib.sha256(prefix)
        self.path = path
        self.size = len(prefix)

    @property
    def sha256(self) -> str:
        """Checksum of the first `size` bytes."""
        return self._hash.hexdigest()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of plain values; floats that are not finite survive."""
        line = dumps(entry).encode() + b"\n"
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._hash.update(line)
        self.size += len(line)

    def flush(self) -> None:
        """Return when the disk has all entries; to be called before a checkpoint refers to `size`."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_journal(folder: Path, size: int, sha256: str | None = None) -> tuple[Journal, list[dict[str, Any]]]:
    """The journal in `folder`, cut back to `size` bytes, and the entries in them. Makes an empty one if there is none.

    Raises `RunFolderError` if the journal is shorter than `size` or is not the one that has the checksum `sha256`.
    """
    folder.mkdir(exist_ok=True)
    path = folder / JOURNAL
    if not path.exists():
        path.touch()
        sync_directory(folder)
    with open(path, "rb") as file:
        prefix = file.read(size)
    entries = _entries(path, prefix, size, sha256)  # before `Journal` cuts anything off: what is damaged stays as it is
    return Journal(path, prefix), entries


def _entries(path: Path, prefix: bytes, size: int, sha256: str | None) -> list[dict[str, Any]]:
    if len(prefix) < size:
        raise RunFolderError(f"{path} has {len(prefix)} bytes, but its checkpoint needs {size}; use --overwrite")
    if prefix and not prefix.endswith(b"\n"):
        raise RunFolderError(f"{path} has no end of a line at byte {size}, where its checkpoint ends; use --overwrite")
    if sha256 is not None and hashlib.sha256(prefix).hexdigest() != sha256:
        raise RunFolderError(f"{path} is damaged: it does not match its checksum; start again with --overwrite")
    try:
        return [loads(line) for line in prefix.splitlines()]
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged ({error}); start again with --overwrite") from error


TAIL_BYTES = 512
"""By so many bytes before where it stopped a reader knows that the journal is still the one it has read."""


def journal_path(folder: Path) -> Path:
    """Where the run in a folder keeps its journal."""
    return folder / CHECKPOINT / JOURNAL


class JournalReader:
    """Reads what was added since the last time. A journal that was cut back, as a resumed run does, or replaced by one
    of a new run is read from its start."""

    def __init__(self, folder: Path) -> None:
        self.path = journal_path(folder)
        self._tables, self._read, self._tail = RunTables(), 0, b""

    def tables(self) -> RunTables | None:
        """All rounds so far; None if there is no journal that can be read."""
        try:
            with open(self.path, "rb") as file:
                file.seek(max(self._read - len(self._tail), 0))
                if file.read(len(self._tail)) != self._tail:
                    self._forget()
                    file.seek(0)
                data = file.read()
        except OSError:
            self._forget()
            return None
        return self._taken(data[: data.rfind(b"\n") + 1])  # the last line may be half written

    def _taken(self, lines: bytes) -> RunTables | None:
        try:
            for line in lines.splitlines():
                self._tables.add(loads(line))
        except (ValueError, KeyError, TypeError):
            self._forget()
            return None
        self._read += len(lines)
        self._tail = (self._tail + lines)[-TAIL_BYTES:]
        return self._tables

    def _forget(self) -> None:
        self._tables, self._read, self._tail = RunTables(), 0, b""
