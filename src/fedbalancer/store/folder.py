"""A run folder: everything a run leaves behind, and all it needs to go on after it was killed.

    manifest.json  rounds.parquet  evals.parquet  clients.parquet  population.parquet  model.safetensors  log.jsonl
    checkpoint/  privacy.parquet (where there is noise on what clients tell)

A run that is killed at any moment and resumed ends in the same bytes as one that was left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import safetensors.numpy
from numpy.typing import NDArray

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import FolderLock, clean_temporaries, readable, write_bytes, write_json
from fedbalancer.core.types import Layout, ServerState, Weights
from fedbalancer.store.checkpoint import Checkpoints
from fedbalancer.store.codec import Arrays, decode_state, encode_state, from_jsonable, to_jsonable
from fedbalancer.store.contents import (
    CHECKPOINT,
    CLASSES,
    FILES,
    FORMAT,
    LOG,
    MANIFEST,
    MODEL,
    POPULATION,
    PRIVACY,
    SEALED,
    add_checksum,
    check_free,
    check_identity,
    checksums,
    drop_torn_line,
    find_damaged_files,
    identity,
    make_folder,
    read_manifest,
    refuse_links_of_run,
    remove_run,
)
from fedbalancer.store.journal import Journal, open_journal
from fedbalancer.store.recorder import Restored
from fedbalancer.store.rows import RUN, ClassRow, ClientRow, EvalRow, PopulationRow, PrivacyRow, RoundRow
from fedbalancer.store.tables import RunTables, class_table, population_table, privacy_table

if TYPE_CHECKING:
    import polars as pl

_SERVER, _ENGINE = "server.", "engine."
"""How the names of the arrays in a checkpoint begin, by whose they are."""
_NOTES = "notes"


class RunFolder:
    """One run on disk, made by `create` or `open`; `close` it, or use it in a `with` statement.

    A new run records and checkpoints at once; an opened one calls `restore` first.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], patience_s: float = 0.0) -> None:
        refuse_links_of_run(path)
        self.path = path
        self.manifest: Mapping[str, Any] = manifest
        self._as_opened = manifest
        self._lock = FolderLock(path, patience_s)
        self._checkpoints = Checkpoints(path / CHECKPOINT)
        self._journal: Journal | None = None
        self._tables = RunTables()
        self.notes: list[Mapping[str, Any]] = []

    @classmethod
    def create(cls, path: Path | str, manifest: Mapping[str, Any], overwrite: bool = False) -> RunFolder:
        """A folder for a new run, with `manifest` and the status "running". Whatever stands at `path` stays, except
        that `overwrite` replaces the files of an earlier run."""
        path = Path(path)
        check_free(path, overwrite)
        make_folder(path)
        folder = cls(path, {"format": FORMAT, **readable(dict(manifest))})
        try:
            check_free(path, overwrite)  # again, now that we are alone: another process may have been faster
            remove_run(path)
            folder.update_manifest(status="running", why=None)
            folder._open_journal(0, None)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str, patience_s: float = 0.0) -> RunFolder:
        """The run at `path`, to go on with it as soon as nobody else writes there, within `patience_s`."""
        path = Path(path)
        folder = cls(path, read_manifest(path), patience_s)
        clean_temporaries(path)
        drop_torn_line(path / LOG)
        return folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `restore` found damaged and could do without."""
        return tuple(self._checkpoints.warnings)

    def update_manifest(self, **fields: Any) -> None:
        """Set fields of manifest.json, such as the status (running, done, failed or stopped) and why it is that."""
        manifest = {**self.manifest, **fields}
        if manifest.get("status") == "running":  # its files are about to change
            manifest.pop(FILES, None)
        self.manifest = add_checksum(manifest)
        write_json(self.path / MANIFEST, self.manifest)

    def log(self, event: str, **fields: Any) -> None:
        """Add a line to log.jsonl, with the time in UTC."""
        line = {"time": datetime.now(UTC).isoformat(), "event": event, **readable(fields)}
        with open(self.path / LOG, "ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def record(
        self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow],
        notes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Keep the rows of one round, in memory and in the journal. A round may have no evaluation or several, and an
        evaluation (such as one before training) no round. `notes` are plain values that the journal keeps beside
        them; `restore` brings back those of the rounds it restores."""
        entry = self._tables.entry(row, evals, clients)
        self._opened().append(entry if notes is None else entry | {_NOTES: notes})
        self._tables.add(entry)

    def checkpoint(
        self,
        state: ServerState,
        engine_json: Mapping[str, Any] | None = None,
        engine_arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Save all that is needed to go on from here: the server's state, what the engine remembers of the clients
        (plain values and arrays), and the rows recorded so far."""
        journal = self._opened()
        journal.flush()  # first, because the checkpoint refers to it
        server, server_arrays = encode_state(state)
        blob = {
            "journal": {"size": journal.size, "sha256": journal.sha256},
            "run": identity(self.manifest),
            "server": server,
            "engine": to_jsonable(engine_json or {}),
        }
        arrays = {_SERVER + name: array for name, array in server_arrays.items()}
        arrays |= {_ENGINE + name: array for name, array in (engine_arrays or {}).items()}
        self._checkpoints.save(state.round, blob, arrays)

    def restore(self, template: ServerState) -> Restored | None:
        """What the last whole checkpoint saved, with the recorded rows cut back to it; None, and no rows, to start from
        the beginning. `template` is the state that a new run of the same manifest would start with."""
        loaded = self._checkpoints.load_latest()
        for warning in self.warnings:
            self.log("checkpoint damaged", warning=warning)
        if loaded is None:
            self._open_journal(0, None)
            return None
        blob, arrays = loaded
        check_identity(blob.get("run", {}), self.manifest, self.path / MANIFEST)
        state = decode_state(blob["server"], _under(_SERVER, arrays), template)
        self._open_journal(**blob["journal"])
        return state, from_jsonable(blob["engine"]), _under(_ENGINE, arrays)

    @property
    def _run(self) -> dict[str, Any]:
        """Which run the rows are of, for every file of them."""
        task, method, seed = (self.manifest.get(name) for name in ("task", "method", "seed"))
        name = task.get("name") if isinstance(task, Mapping) else task
        return {"task": name, "method": method, "seed": seed}

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables of all rows recorded so far, by name."""
        return self._tables.frames()

    def write_tables(self) -> None:
        """Write the three Parquet files from all rows recorded so far. Of an opened run that could not be restored
        nothing is known yet, and the files stay as they are."""
        if self._journal is not None:
            for name, table in self._tables.by_name.items():
                write_bytes(self.path / f"{name}.parquet", table.parquet(self._run))

    @property
    def has_population(self) -> bool:
        """Whether population.parquet is there, from when the run first ended. A run that is carried on keeps it: its
        budget ended there."""
        return (self.path / POPULATION).is_file()

    def record_population(self, rows: Sequence[PopulationRow]) -> None:
        """Write population.parquet, a row per client."""
        write_bytes(self.path / POPULATION, population_table(rows).parquet(self._run))

    def record_classes(self, rows: Sequence[ClassRow]) -> None:
        """Write classes.parquet, a row per class; nothing where nobody counted."""
        if rows:
            write_bytes(self.path / CLASSES, class_table(rows).parquet(self._run))

    def record_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Write privacy.parquet, a row per client."""
        write_bytes(self.path / PRIVACY, privacy_table(rows).parquet(self._run))

    def population(self) -> pl.DataFrame | None:
        """The clients at the first end of the run; None before it."""
        import polars as pl

        if not self.has_population:
            return None
        if POPULATION in find_damaged_files(self.path, self._as_opened):
            raise RunFolderError(
                f"{self.path / POPULATION} is damaged: it does not match its checksum; use --overwrite"
            )
        return pl.read_parquet(self.path / POPULATION, glob=False).drop(list(RUN), strict=False)

    def classes(self) -> pl.DataFrame | None:
        """What was trained by class up to the first end of the run; None where nobody counted."""
        return self._table(CLASSES)

    def privacy(self) -> pl.DataFrame | None:
        """What the clients gave away; None where nothing counts it."""
        return self._table(PRIVACY)

    def _table(self, name: str) -> pl.DataFrame | None:
        import polars as pl

        if not (self.path / name).is_file():
            return None
        return pl.read_parquet(self.path / name, glob=False).drop(list(RUN), strict=False)

    def finish(
        self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None
    ) -> None:
        """Write down how the run ended: the model where there are weights with a layout, the tables, the status."""
        with nullcontext() if status == "done" else suppress(OSError):  # a bad end is noted even if the disk is full
            if weights is not None and layout:
                write_bytes(self.path / MODEL, safetensors.numpy.save(layout.split(weights)))
            self.write_tables()
        self.update_manifest(status=status, why=why, files=checksums(self.path, SEALED))
        self.log(status, why=why)

    def close(self) -> None:
        """Close the files and let others write here; again is fine."""
        self._close_journal()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open_journal(self, size: int, sha256: str | None) -> None:
        self._close_journal()
        self._journal, entries = open_journal(self.path / CHECKPOINT, size, sha256)
        self._tables, self.notes = RunTables(), [entry[_NOTES] for entry in entries if _NOTES in entry]
        for entry in entries:
            self._tables.add(entry)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _opened(self) -> Journal:
        if self._journal is None:
            raise RuntimeError(f"{self.path} records nothing before restore() was called, nor after close()")
        return self._journal


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
