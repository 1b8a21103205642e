"""Reads from the folder of a run how its devices behaved: seconds per batch, transfers, and who answered."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.types import FloatArray, IndexArray, batches_per_epoch
from fedbalancer.store import read_manifest
from fedbalancer.store.checkpoint import peek_latest
from fedbalancer.store.contents import CHECKPOINT, read_events
from fedbalancer.store.tables import read_table

ANSWERED = ("completed", "joined", "late", "download", "forward", "train", "upload", "invalid")
"""Outcomes of a client that was there, whether or not its report counted."""
ABSENT = ("silent", "unavailable")
"""Outcomes of a client that did not answer."""
MEGABIT_BYTES = 125_000.0
NEEDED = {
    "rounds": ("round", "start_s", "end_s", "deadline_s", "selected", "completed", "down_bytes", "up_bytes"),
    "clients": ("round", "client", "outcome", "samples", "epochs", "download_s", "train_s", "upload_s", "paused_s"),
}
"""Tables of a recording, and the columns that are read."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The rounds and the devices of a run, as its folder describes them.

    Args:
        folder: The run folder.
        manifest: Content of manifest.json.
        rounds: The table `rounds`.
        clients: The table `clients`, with `start_s`, `all_batches`, `batches` (null: unknown), `batch_s`, `down_mbit_s`
            and `up_mbit_s` (null: not measured).
        down_bytes: Bytes of the model that a client downloads.
        up_bytes: Bytes of an update.
        ledger: Seconds per batch, sizes and network seconds by client, from the last checkpoint; empty without one.
        splits_evenly: Whether download and upload are halves of one measurement, as on Flower.
        overhead_s: Seconds between rounds that the run's clock does not count, such as evaluations.
    """

    folder: Path
    manifest: Mapping[str, Any]
    rounds: pl.DataFrame
    clients: pl.DataFrame
    down_bytes: float
    up_bytes: float
    ledger: Mapping[str, tuple[float, int, float]] = field(default_factory=dict)
    splits_evenly: bool = False
    overhead_s: float = 0.0

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return int(self.manifest.get("settings", {}).get("batch_size", 10))

    def all_batches(self, samples: int) -> int:
        """Return the number of batches in all epochs of a client with this many samples."""
        return int(_all_batches(np.array([samples]), self.manifest.get("settings", {}))[0])

    @property
    def is_simulated(self) -> bool:
        """Whether the run was simulated."""
        return self.manifest.get("engine") is None

    @property
    def seconds(self) -> FloatArray:
        """Seconds of every round, including client selection before it."""
        return (self.rounds["end_s"] - self.rounds["start_s"]).to_numpy()

    @cached_property
    def started(self) -> datetime:
        """When the run started."""
        try:
            return datetime.fromisoformat(str(self.manifest["started"]))
        except (KeyError, ValueError):
            return datetime.fromtimestamp(0, UTC)

    def window_s(self) -> float:
        """Return the mean seconds of a round in which nobody works: client selection, or waiting for free clients."""
        settings = self.manifest.get("settings", {})
        if self.is_simulated and "window_s" in settings:
            return float(settings["window_s"])
        closed = {
            number: event["seconds"]
            for number, event in _closed_rounds(self.folder).items()
            if isinstance(event.get("seconds"), int | float)
        }
        known = self.rounds.filter(pl.col("round").is_in(list(closed)))
        if not known.height:
            return 0.0
        worked = np.array([closed[number] for number in known["round"].to_list()])
        return float(np.maximum((known["end_s"] - known["start_s"]).to_numpy() - worked, 0).mean())


def read_recording(folder: Path | str, rounds: int | None = None) -> Recording:
    """Read what a run measured. The run may still be running.

    Args:
        folder: A run folder: of this program, of a `Strategy` with a `run_key`, or of `flower.record_timings`.
        rounds: Read the first rounds only. Default: all.

    Raises:
        RunFolderError: If the folder has no tables of rounds and clients, or they are empty.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    table, clients = (read_table(folder, name, columns) for name, columns in NEEDED.items())
    clients = clients.sort("round", "client")  # the same sums every time
    if rounds is not None:
        if rounds < 1:
            raise BadSetting(f"rounds = {rounds} must be at least 1")
        table, clients = (each.filter(pl.col("round") <= rounds) for each in (table, clients))
    if not table.height or not clients.height:
        raise RunFolderError(f"{folder} has no finished round yet; learn from it later")
    settings = manifest.get("settings", {})
    down_bytes = float((table["down_bytes"] / table["selected"].clip(1)).median() or 0.0)  # type: ignore[arg-type]
    up_bytes = _bytes_of_update(table, down_bytes)
    even = bool((clients["download_s"] - clients["upload_s"]).abs().max() == 0) and manifest.get("engine") is not None
    return Recording(
        folder, manifest, table, _with_measurements(clients, table, settings, down_bytes, up_bytes), down_bytes,
        up_bytes, _ledger(folder, first=rounds is not None), even, _overhead_s(folder, manifest, table),
    )  # fmt: skip


def _bytes_of_update(rounds: pl.DataFrame, down_bytes: float) -> float:
    """Return the bytes of an update; those of the model if no round had a report."""
    with_reports = rounds.filter((pl.col("completed") > 0) & (pl.col("up_bytes") > 0))
    each = with_reports.select((pl.col("up_bytes") / pl.col("completed")).min()).item() if with_reports.height else None
    return float(each) if each else down_bytes


def _with_measurements(
    clients: pl.DataFrame, rounds: pl.DataFrame, settings: Mapping[str, Any], down_bytes: float, up_bytes: float
) -> pl.DataFrame:
    """Add the derived columns; a phase without a duration was not measured."""
    samples = np.maximum(clients["samples"].to_numpy(), 1)
    per_epoch = _per_epoch(samples, settings)
    epochs = clients["epochs"].to_numpy()
    # A client that stops in its first epoch reports the samples of these batches only.
    done = np.where(epochs < 1, per_epoch, np.maximum(np.rint(epochs * per_epoch), 1))
    batches = np.where(epochs > 0, done, np.nan)
    all_batches = _all_batches(samples, settings)
    derived = clients.with_columns(all_batches=pl.Series(all_batches), batches=pl.Series(batches).fill_nan(None)).join(
        rounds.select("round", "start_s", "deadline_s"), on="round", how="left"
    )
    positive = {name: pl.when(pl.col(name) > 0).then(pl.col(name)) for name in ("train_s", "download_s", "upload_s")}
    return derived.with_columns(
        batch_s=positive["train_s"] / pl.col("batches"),
        down_mbit_s=down_bytes / MEGABIT_BYTES / positive["download_s"],
        up_mbit_s=up_bytes / MEGABIT_BYTES / positive["upload_s"],
    )


def _per_epoch(samples: IndexArray, settings: Mapping[str, Any]) -> IndexArray:
    size, most = int(settings.get("batch_size", 10)), settings.get("epoch_batches")
    return batches_per_epoch(samples, size, most, bool(settings.get("drop_last", False)))


def _all_batches(samples: IndexArray, settings: Mapping[str, Any]) -> IndexArray:
    return _per_epoch(samples, settings) * int(settings.get("epochs", 1))


def _ledger(folder: Path, first: bool) -> dict[str, tuple[float, int, float]]:
    """Return seconds per batch, samples and network seconds by client, as the server knows them."""
    loaded = peek_latest(folder / CHECKPOINT)
    if loaded is None:
        return {}
    blob, arrays = loaded
    clients = blob["server"]["clients"]
    place = "engine.setup." if first else "server.ledger."
    names = ("batch_s_sum", "batch_s_count", "size", "network_s")
    if any(f"{place}{name}" not in arrays for name in names):
        return {}
    total_s, count, size, network_s = (arrays[f"{place}{name}"] for name in names)
    rows = zip(clients, (total_s / np.maximum(count, 1)).tolist(), size.tolist(), network_s.tolist(), strict=False)
    return {client: (batch_s, int(samples), network) for client, batch_s, samples, network in rows}


def _closed_rounds(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the events of closed rounds in the log, by round."""
    closed = [event for event in read_events(folder) if event["event"] == "round closed"]
    return {each["round"]: each for each in closed if isinstance(each.get("round"), int)}


def _overhead_s(folder: Path, manifest: Mapping[str, Any], rounds: pl.DataFrame) -> float:
    """Return the median seconds between the ends of two rounds that the run's clock does not count."""
    if manifest.get("engine") is None or manifest.get("device") == "emulated":
        return 0.0
    ends = {number: datetime.fromisoformat(each["time"]) for number, each in _closed_rounds(folder).items()}
    clock = dict(zip(rounds["round"].to_list(), (rounds["end_s"] - rounds["start_s"]).to_list(), strict=True))
    gaps = [
        (ends[number] - ends[number - 1]).total_seconds() - clock[number]
        for number in ends
        if number - 1 in ends and number in clock
    ]
    return max(statistics.median(gaps), 0.0) if gaps else 0.0
