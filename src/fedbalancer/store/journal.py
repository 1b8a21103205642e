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
    """An open journal. Use `open_journal` to open one.

    Args:
        path: File of the journal.
        prefix: Bytes to keep; the rest of the file is removed.

    Attributes:
        size: Length in bytes.
    """

    def __init__(self, path: Path, prefix: bytes) -> None:
        # Unbuffered: otherwise a forked worker could write a copy of the buffer later.
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(len(prefix))
        self._file.seek(len(prefix))
        self._hash = hashlib.sha256(prefix)
        self.path = path
        self.size = len(prefix)

    @property
    def sha256(self) -> str:
        """Return the checksum of the first `size` bytes."""
        return self._hash.hexdigest()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of plain values, which may include NaN and infinities."""
        line = dumps(entry).encode() + b"\n"
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._hash.update(line)
        self.size += len(line)

    def flush(self) -> None:
        """Wait until all entries are on the disk. Call this before a checkpoint stores `size`."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_journal(folder: Path, size: int, sha256: str | None = None) -> tuple[Journal, list[dict[str, Any]]]:
    """Open the journal in a folder and truncate it. Create an empty journal if there is none.

    Args:
        folder: The folder.
        size: Number of bytes to keep.
        sha256: Expected checksum of these bytes. None: not checked.

    Returns:
        The journal and its entries.

    Raises:
        RunFolderError: If the journal is too short or damaged.
    """
    folder.mkdir(exist_ok=True)
    path = folder / JOURNAL
    if not path.exists():
        path.touch()
        sync_directory(folder)
    with open(path, "rb") as file:
        prefix = file.read(size)
    entries = _parse_entries(path, prefix, size, sha256)  # before `Journal` truncates: a damaged file is left unchanged
    return Journal(path, prefix), entries


def _parse_entries(path: Path, prefix: bytes, size: int, sha256: str | None) -> list[dict[str, Any]]:
    if len(prefix) < size:
        raise RunFolderError(f"{path} has {len(prefix)} bytes, but its checkpoint needs {size}; use --overwrite")
    if prefix and not prefix.endswith(b"\n"):
        raise RunFolderError(f"{path} has no end of line at byte {size}, where its checkpoint ends; use --overwrite")
    if sha256 is not None and hashlib.sha256(prefix).hexdigest() != sha256:
        raise RunFolderError(f"{path} is damaged: it does not match its checksum; start again with --overwrite")
    try:
        return [loads(line) for line in prefix.splitlines()]
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged ({error}); start again with --overwrite") from error


TAIL_BYTES = 512
"""Number of bytes before its position by which a reader recognises the journal."""


def journal_path(folder: Path) -> Path:
    """Return the path of the journal of the run in a folder."""
    return folder / CHECKPOINT / JOURNAL


class JournalReader:
    """Follows the journal of a run in another process.

    The journal has every round at once; the tables on the disk are updated less often. A journal that was truncated by
    a resumed run, or replaced by a new run, is read again from its start.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = journal_path(folder)
        self._tables, self._read, self._tail = RunTables(), 0, b""

    def tables(self) -> RunTables | None:
        """Return all recorded rounds; None if the journal cannot be read."""
        try:
            with open(self.path, "rb") as file:
                file.seek(max(self._read - len(self._tail), 0))
                if file.read(len(self._tail)) != self._tail:
                    self._reset()
                    file.seek(0)
                data = file.read()
        except OSError:
            self._reset()
            return None
        return self._add_lines(data[: data.rfind(b"\n") + 1])  # the last line may be incomplete

    def _add_lines(self, lines: bytes) -> RunTables | None:
        try:
            for line in lines.splitlines():
                self._tables.add(loads(line))
        except (ValueError, KeyError, TypeError):
            self._reset()
            return None
        self._read += len(lines)
        self._tail = (self._tail + lines)[-TAIL_BYTES:]
        return self._tables

    def _reset(self) -> None:
        self._tables, self._read, self._tail = RunTables(), 0, b""
