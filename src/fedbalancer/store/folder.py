"""The folder of one run.

    manifest.json  rounds.parquet  evals.parquet  clients.parquet  population.parquet  classes.parquet
    privacy.parquet (methods with noise)  model.safetensors  log.jsonl  checkpoint/

A run that is killed at any moment and resumed ends with the same bytes as an uninterrupted run.
`MemoryRecorder` records a run without a folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
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
from fedbalancer.store.checkpoint import KEPT, Checkpoints
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
from fedbalancer.store.rows import ClassRow, ClientRow, EvalRow, PopulationRow, PrivacyRow, RoundRow, RunColumns
from fedbalancer.store.tables import RunTables, Table

if TYPE_CHECKING:
    import polars as pl


_SERVER, _ENGINE = "server.", "engine."
"""Prefixes of the names of arrays in a checkpoint."""
_NOTES = "notes"
Restored = tuple[ServerState, dict[str, Any], Arrays]
"""The server's state, and the plain values and arrays of the engine."""


class RunFolder:
    """One run on the disk. Use `create` or `open` to get one, and close it or use it in a `with` statement.

    A new run can record rows at once. An opened run must call `restore` first.

    Args:
        path: The folder.
        manifest: Content of the manifest.
        patience_s: Time to wait for another process that writes to the folder.
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
        """Create the folder of a new run, with the status "running".

        Args:
            path: The folder. Other files in it are kept.
            manifest: Content of the manifest.
            overwrite: Whether to replace the files of an earlier run.

        Raises:
            RunFolderError: If the folder may not be written.
        """
        path = Path(path)
        check_free(path, overwrite)
        make_folder(path)
        folder = cls(path, {"format": FORMAT, **readable(dict(manifest))})
        try:
            check_free(path, overwrite)  # again, under the lock: another process may have been faster
            remove_run(path)
            folder.update_manifest(status="running", why=None)
            folder._open_journal(0, None)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str, patience_s: float = 0.0) -> RunFolder:
        """Open the run at `path` to continue it.

        Args:
            path: The folder.
            patience_s: Time to wait for another process that writes to the folder.
        """
        path = Path(path)
        folder = cls(path, read_manifest(path), patience_s)
        clean_temporaries(path)
        drop_torn_line(path / LOG)
        return folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one message per damaged checkpoint that `restore` skipped."""
        return tuple(self._checkpoints.warnings)

    def update_manifest(self, **fields: Any) -> None:
        """Set fields of manifest.json, such as the status (running, done, failed or stopped) and its reason."""
        manifest = {**self.manifest, **fields}
        if manifest.get("status") == "running":  # its files will change
            manifest.pop(FILES, None)
        self.manifest = add_checksum(manifest)
        write_json(self.path / MANIFEST, self.manifest)

    def log(self, event: str, **fields: Any) -> None:
        """Append a line to log.jsonl, with the time in UTC."""
        line = {"time": datetime.now(UTC).isoformat(), "event": event, **readable(fields)}
        with open(self.path / LOG, "ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def record(
        self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow],
        notes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Record the rows of one round, in memory and in the journal.

        Args:
            row: The round. None for an evaluation before training.
            evals: Evaluations after the round.
            clients: The selected clients.
            notes: Plain values that the journal stores with the rows; `restore` restores them in `self.notes`.
        """
        entry = self._tables.entry(row, evals, clients)
        self._get_journal().append(entry if notes is None else entry | {_NOTES: notes})
        self._tables.add(entry)

    def checkpoint(
        self,
        state: ServerState,
        engine_json: Mapping[str, Any] | None = None,
        engine_arrays: Mapping[str, NDArray[Any]] | None = None,
        keep: int = KEPT,
        pinned: Collection[int] = (),
    ) -> None:
        """Save a checkpoint of the state and of all recorded rows.

        Args:
            state: The server's state.
            engine_json: Plain values of the engine.
            engine_arrays: Arrays of the engine.
            keep: Number of checkpoints to keep.
            pinned: Rounds whose checkpoints are kept as well.
        """
        journal = self._get_journal()
        journal.flush()  # first, because the checkpoint stores its size
        server, server_arrays = encode_state(state)
        blob = {
            "journal": {"size": journal.size, "sha256": journal.sha256},
            "run": identity(self.manifest),
            "server": server,
            "engine": to_jsonable(engine_json or {}),
        }
        arrays = {_SERVER + name: array for name, array in server_arrays.items()}
        arrays |= {_ENGINE + name: array for name, array in (engine_arrays or {}).items()}
        self._checkpoints.save(state.round, blob, arrays, keep, pinned)

    def roll_back(self, step: int) -> None:
        """Return to an earlier checkpoint: remove later ones, and write the tables as they were then.

        Args:
            step: Round of the checkpoint.
        """
        blob, _ = self._checkpoints.load(step)
        check_identity(blob.get("run", {}), self.manifest, self.path / MANIFEST)
        self._checkpoints.remove_after(step)  # first: the journal may be longer than a checkpoint says, not shorter
        self._open_journal(**blob["journal"])
        self.write_tables()

    def restore(self, template: ServerState) -> Restored | None:
        """Restore the last valid checkpoint and the rows recorded up to it.

        Args:
            template: Initial state of a new run with the same manifest.

        Returns:
            The saved state and the values of the engine. None if there is no checkpoint: the run has to start again.

        Raises:
            RunFolderError: If all checkpoints are damaged or do not belong to this run.
        """
        loaded = self._checkpoints.load_latest()
        for warning in self.warnings:
            self.log("checkpoint damaged", warning=warning)
        if loaded is None:
            self._open_journal(0, None)
            return None
        blob, arrays = loaded
        check_identity(blob.get("run", {}), self.manifest, self.path / MANIFEST)
        state = decode_state(blob["server"], _without_prefix(_SERVER, arrays), template)
        self._open_journal(**blob["journal"])
        return state, from_jsonable(blob["engine"]), _without_prefix(_ENGINE, arrays)

    @property
    def _run(self) -> dict[str, Any]:
        """The values of the columns that name the run."""
        values = {name: self.manifest.get(name) for name in RunColumns._fields}
        return {name: value.get("name") if isinstance(value, Mapping) else value for name, value in values.items()}

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables of all recorded rows, by name."""
        return self._tables.frames()

    def write_tables(self) -> None:
        """Write rounds.parquet, evals.parquet and clients.parquet.

        Does nothing in an opened run that was not restored, because its rows are unknown.
        """
        if self._journal is not None:
            for name, table in self._tables.by_name.items():
                write_bytes(self.path / f"{name}.parquet", table.parquet(self._run))

    @property
    def has_population(self) -> bool:
        """Return whether population.parquet exists, which is written when a run first ends."""
        return (self.path / POPULATION).is_file()

    def record_population(self, rows: Sequence[PopulationRow]) -> None:
        """Write population.parquet, with one row per client."""
        write_bytes(self.path / POPULATION, Table(PopulationRow, rows).parquet(self._run))

    def record_classes(self, rows: Sequence[ClassRow]) -> None:
        """Write classes.parquet, with one row per class; nothing without rows."""
        if rows:
            write_bytes(self.path / CLASSES, Table(ClassRow, rows).parquet(self._run))

    def record_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Write privacy.parquet, with one row per client."""
        write_bytes(self.path / PRIVACY, Table(PrivacyRow, rows).parquet(self._run))

    def population(self) -> pl.DataFrame | None:
        """Return the clients at the end of the run; None before the end.

        Raises:
            RunFolderError: If the file is damaged.
        """
        if self.has_population and POPULATION in find_damaged_files(self.path, self._as_opened):
            raise RunFolderError(
                f"{self.path / POPULATION} is damaged: it does not match its checksum; use --overwrite"
            )
        return self._read_table(POPULATION)

    def classes(self) -> pl.DataFrame | None:
        """Return the trained samples by class; None if they were not counted."""
        return self._read_table(CLASSES)

    def privacy(self) -> pl.DataFrame | None:
        """Return the privacy loss by client; None if it was not counted."""
        return self._read_table(PRIVACY)

    def _read_table(self, name: str) -> pl.DataFrame | None:
        import polars as pl

        if not (self.path / name).is_file():
            return None
        return pl.read_parquet(self.path / name, glob=False).drop(RunColumns._fields, strict=False)

    def finish(
        self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None
    ) -> None:
        """Write the tables, the status and the model of a run that ends.

        Args:
            status: "done", "failed" or "stopped".
            why: Reason for the status.
            weights: Weights of the model. None: no model is written.
            layout: Layout of the weights.
        """
        with nullcontext() if status == "done" else suppress(OSError):  # a failure is recorded even on a full disk
            if weights is not None and layout:
                write_bytes(self.path / MODEL, safetensors.numpy.save(layout.split(weights)))
            self.write_tables()
        self.update_manifest(status=status, why=why, files=checksums(self.path, SEALED))
        self.log(status, why=why)

    def close(self) -> None:
        """Close the files and release the lock. May be called more than once."""
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

    def _get_journal(self) -> Journal:
        if self._journal is None:
            raise RuntimeError(f"{self.path} cannot record anything before restore() or after close()")
        return self._journal


def _without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class MemoryRecorder:
    """Keeps the tables and the last state of a run in memory. It has the same methods as a `RunFolder`."""

    path = None

    def __init__(self) -> None:
        self._tables = RunTables()
        self._saved: Restored | None = None
        self._population: Table | None = None
        self._classes: Table | None = None
        self._privacy: Table | None = None

    def restore(self, template: ServerState) -> Restored | None:
        """Return the last saved state."""
        return self._saved

    def record(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> None:
        """Record the rows of one round."""
        self._tables.add(self._tables.entry(row, evals, clients))

    @property
    def has_population(self) -> bool:
        """Return whether the population was recorded."""
        return self._population is not None

    def record_population(self, rows: Sequence[PopulationRow]) -> None:
        """Record one row per client."""
        self._population = Table(PopulationRow, rows)

    def record_classes(self, rows: Sequence[ClassRow]) -> None:
        """Record one row per class; nothing without rows."""
        self._classes = Table(ClassRow, rows) if rows else None

    def record_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Record one row per client."""
        self._privacy = Table(PrivacyRow, rows)

    def checkpoint(
        self, state: ServerState, engine_json: Mapping[str, Any], engine_arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Keep the state from which the run can continue."""
        self._saved = (state, dict(engine_json), dict(engine_arrays))

    def write_tables(self) -> None:
        """Do nothing."""

    def log(self, event: str, **fields: Any) -> None:
        """Do nothing."""

    def finish(
        self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None
    ) -> None:
        """Do nothing."""

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables by name."""
        return self._tables.frames()

    def population(self) -> pl.DataFrame | None:
        """Return the clients at the end of the run; None before the end."""
        return None if self._population is None else self._population.frame()

    def classes(self) -> pl.DataFrame | None:
        """Return the trained samples by class; None if they were not counted."""
        return None if self._classes is None else self._classes.frame()

    def privacy(self) -> pl.DataFrame | None:
        """Return the privacy loss by client; None if it was not counted."""
        return None if self._privacy is None else self._privacy.frame()
