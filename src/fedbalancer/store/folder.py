"""A run folder: everything a run leaves behind, and all it needs to go on after it was killed.

    manifest.json  rounds.parquet  evals.parquet  clients.parquet  model.safetensors  log.jsonl  checkpoint/

A run that is killed at any moment and resumed ends in the same bytes as one that was left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from fedbalancer.files import clean_temporaries, readable, write_bytes, write_json
from fedbalancer.store.contents import (
    CHECKPOINT,
    FORMAT,
    LOG,
    MANIFEST,
    MODEL,
    check_free,
    drop_torn_line,
    make_folder,
    read_manifest,
    remove_run,
)
from fedbalancer.store.lock import FolderLock
from fedbalancer.store.recording import Recording, Restored, Row
from fedbalancer.types import Layout, ServerState, Weights

STATUSES = ("running", "done", "failed", "stopped")


class RunFolder:
    """One run on disk, made by `create` or `open`; `close` it, or use it in a `with` statement.

    A new run records and checkpoints at once; an opened one calls `restore` first.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], lock: FolderLock | None) -> None:
        self.path = path
        self._manifest = manifest
        self._lock = lock
        self._recording = Recording(path / CHECKPOINT)

    @classmethod
    def create(cls, path: Path | str, manifest: Mapping[str, Any], overwrite: bool = False) -> RunFolder:
        """A folder for a new run, with `manifest` and the status "running". Whatever stands at `path` stays, except
        that `overwrite` replaces the files of an earlier run."""
        path = Path(path)
        check_free(path, overwrite)
        make_folder(path)
        folder = cls(path, {"format": FORMAT, **readable(dict(manifest))}, FolderLock(path))
        try:
            check_free(path, overwrite)  # again, now that we are alone: another process may have been faster
            remove_run(path)
            folder.set_status("running")
            folder._recording.restart()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str, read_only: bool = False) -> RunFolder:
        """The run at `path`: to go on with it, or only to read its manifest, which needs no lock."""
        path = Path(path)
        manifest = read_manifest(path)
        if read_only:
            return cls(path, manifest, None)
        folder = cls(path, manifest, FolderLock(path))
        clean_temporaries(path)
        drop_torn_line(path / LOG)
        return folder

    @property
    def manifest(self) -> dict[str, Any]:
        """What manifest.json says."""
        return dict(self._manifest)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `restore` found damaged and could do without."""
        return tuple(self._recording.checkpoints.warnings)

    def update_manifest(self, **fields: Any) -> None:
        """Set fields of manifest.json."""
        self._check_writable()
        self._manifest = {**self._manifest, **readable(fields)}
        write_json(self.path / MANIFEST, self._manifest)

    def set_status(self, status: str, why: str | None = None) -> None:
        """Say in the manifest how the run stands: running, done, failed or stopped, and why."""
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        self.update_manifest(status=status, why=why)

    def log(self, event: str, **fields: Any) -> None:
        """Add a line to log.jsonl, with the time in UTC."""
        self._check_writable()
        line = {"time": datetime.now(UTC).isoformat(), "event": event, **readable(fields)}
        with open(self.path / LOG, "ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def record(self, round_row: Row | None, eval_row: Row | None, client_rows: Sequence[Row]) -> None:
        """Keep the rows of one round; each has exactly the columns of its schema. A round may have no evaluation, and
        an evaluation (such as one before training) no round."""
        self._check_writable()
        self._recording.record(round_row, eval_row, client_rows)

    def checkpoint(
        self,
        state: ServerState,
        engine_json: Mapping[str, Any] | None = None,
        engine_arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Save all that is needed to go on from here: the server's state, what the engine remembers of the clients
        (plain values and arrays), and the rows recorded so far."""
        self._check_writable()
        self._recording.checkpoint(state, engine_json or {}, engine_arrays or {})

    def restore(self, template: ServerState) -> Restored | None:
        """What the last whole checkpoint saved, with the recorded rows cut back to it; None to start from the
        beginning. `template` is the state that a new run of the same manifest would start with."""
        self._check_writable()
        restored = self._recording.restore(template)
        for warning in self.warnings:
            self.log("checkpoint damaged", warning=warning)
        return restored

    def write_tables(self) -> None:
        """Write the three Parquet files from all rows recorded so far. Of an opened run that could not be restored
        nothing is known yet, and the files stay as they are."""
        self._check_writable()
        if not self._recording.begun:
            return
        for name, table in self._recording.tables.items():
            write_bytes(self.path / f"{name}.parquet", table.parquet())

    def write_model(self, weights: Weights, layout: Layout) -> None:
        """Write model.safetensors with the tensors that `layout` names; nothing for a model without a layout."""
        self._check_writable()
        if layout:
            write_bytes(self.path / MODEL, safetensors.numpy.save(layout.split(weights)))

    def close(self) -> None:
        """Close the files and let others write here; again is fine."""
        self._recording.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_writable(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"{self.path} is closed, or open for reading only")
