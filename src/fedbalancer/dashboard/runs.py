"""The runs of a folder as far as they have come, read again only where something changed.

A run that goes on brings its tables on disk up to date now and then, but its journal after every round. So of such a
run there is a copy, made from the journal, in a folder of our own; the report reads that as it reads any run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from fedbalancer.report.folders import load_run
from fedbalancer.report.stored import StoredRun
from fedbalancer.store.follow import JournalReader, journal_of

FILES = ("manifest.json", "rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet")
Signature = tuple[tuple[int, int, int] | None, ...]
"""Of each file: when it was written, its size, and which file it is. None if it is not there."""


def signature(*paths: Path) -> Signature:
    """What changes whenever one of the files does."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


class LiveRuns:
    """Reads runs like `load_run`, and remembers them."""

    def __init__(self) -> None:
        self._copies = TemporaryDirectory(prefix="fedbalancer-dashboard-")
        self._readers: dict[Path, JournalReader] = {}
        self._known: dict[Path, tuple[Signature, StoredRun]] = {}

    def load(self, folder: Path, method: str | None = None, seed: int | None = None) -> StoredRun:
        """The run in a folder, from memory if none of its files has changed."""
        now = self.signature(folder)
        before = self._known.get(folder)
        if before is not None and before[0] == now:
            return before[1]
        run = load_run(self._newest(folder), method, seed)
        self._known[folder] = now, run
        return run

    def signature(self, folder: Path) -> Signature:
        """What changes whenever the run in a folder does."""
        return signature(*(folder / name for name in FILES), journal_of(folder))

    def close(self) -> None:
        """Remove the copies."""
        self._copies.cleanup()

    def __enter__(self) -> LiveRuns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _newest(self, folder: Path) -> Path:
        """The folder itself or, of a run that goes on, a copy that has all its rounds."""
        if not _goes_on(folder):
            self._readers.pop(folder, None)
            return folder
        reader = self._readers.setdefault(folder, JournalReader(folder))
        tables = reader.tables()
        if tables is None:
            return folder
        copy = Path(self._copies.name) / "run"  # one at a time: what is read of it is in memory then
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("manifest.json", "population.parquet"):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, copy / name)
        for name, table in tables.by_name.items():
            (copy / f"{name}.parquet").write_bytes(table.parquet())  # nobody else reads it: the disk need not have it
        return copy


def _goes_on(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("status") == "running"
