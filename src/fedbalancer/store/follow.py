"""A run that another process writes, as far as it has come: its journal has every round at once, while the tables on
disk are brought up to date only now and then."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.store.codec import loads
from fedbalancer.store.contents import CHECKPOINT
from fedbalancer.store.journal import JOURNAL
from fedbalancer.store.tables import RunTables

TAIL_BYTES = 512
"""By so many bytes before where it stopped a reader knows that the journal is still the one it has read."""


def journal_of(folder: Path) -> Path:
    """Where the run in a folder keeps its journal."""
    return folder / CHECKPOINT / JOURNAL


class JournalReader:
    """Reads what was added since the last time. A journal that was cut back, as a resumed run does, or replaced by one
    of a new run is read from its start."""

    def __init__(self, folder: Path) -> None:
        self.path = journal_of(folder)
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
