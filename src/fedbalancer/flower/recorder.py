"""The run folder of a run on Flower: the files of a simulated run, and a checkpoint after every round."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from fedbalancer.core.errors import BadSetting, FedBalancerError, RunFolderError
from fedbalancer.core.files import write_bytes
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import (
    ClientReport,
    Evaluation,
    Layout,
    Ledger,
    RoundResult,
    ServerState,
    Summary,
    Timings,
    Weights,
)
from fedbalancer.core.types.state import Positions
from fedbalancer.flower.compat import MetricRecord, RecordDict
from fedbalancer.flower.open_round import LateReport
from fedbalancer.flower.release import LAYOUT, MODEL_ARRAY, RELEASED, BestRound, Gate
from fedbalancer.methods.composition import Method
from fedbalancer.methods.fields import describe_settings
from fedbalancer.privacy.accounting import RELEASES
from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder, new_manifest
from fedbalancer.store.checkpoint import KEPT, Checkpoints
from fedbalancer.store.codec import dumps, loads
from fedbalancer.store.contents import CHECKPOINT, MANIFEST, MODEL
from fedbalancer.store.rows import JOINED, ROUNDS, ClientSpread, PrivacyRow
from fedbalancer.store.tracking import open_sinks

LATE = "late"
"""Folder of late reports that have not joined a round."""
FIXED = ("engine", "method", "seed", "aggregate")
"""Fields of the manifest that must not change when a run resumes."""
CHANGEABLE = ("settings", "train_config")
"""Fields that may change with `accept_changes`."""
WITHOUT_EFFECT = ("rounds", "checkpoint_s", "save_exact_losses")
"""Settings that do not affect training."""
_log = logging.getLogger("flwr.fedbalancer")


@dataclass(frozen=True)
class Change:
    """A setting that has changed since the run was started."""

    setting: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.setting} {self.before!r}, now {self.now!r}"


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any], accept: bool) -> list[Change]:
    """Return what has changed since the run was started.

    Args:
        before: The manifest of the run folder.
        now: The manifest of this start.
        accept: Whether settings may change.

    Raises:
        RunFolderError: Something changed that must not change.
    """
    for field in FIXED:
        if field in before and before[field] != now.get(field):
            raise RunFolderError(
                f"the run to resume has {field} {before[field]!r}, this one {now.get(field)!r}; choose another run_key"
            )
    changes = [change for field in CHANGEABLE if field in before for change in _differences(field, before, now)]
    if changes and not accept:
        raise RunFolderError(
            f"the run to resume has {'; '.join(map(str, changes))}: undo the change, choose another run_key, or "
            "continue with Strategy(accept_changes=True), which records the change in manifest.json"
        )
    return changes


def _differences(field: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    old, new = before[field], now.get(field) or {}
    # A setting that a newer version added had its default value.
    default = Settings().model_dump(mode="json") if field == "settings" else {}
    names = [name for name in sorted({*old, *new}) if field != "settings" or name not in WITHOUT_EFFECT]
    pairs = {name: (old.get(name, default.get(name)), new.get(name, default.get(name))) for name in names}
    shown = "" if field == "settings" else f"{field}."
    return [Change(f"{shown}{name}", *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


_SETUP = ("size", "network_s", "batch_s_sum", "batch_s_count")
"""Saved columns of the ledger that T is computed from; the others are the same for all clients."""
PREVIOUS_S = 60.0
"""Longest wait for an earlier server of the same run to end. One that has lost its SuperLink notices it late."""


def run_folder_path(base: Path | str, run_key: str) -> Path:
    """Return the run folder of a key.

    Raises:
        BadSetting: The key is not a valid file name.
    """
    if not re.fullmatch(r"[\w.-]{1,100}", run_key) or run_key.startswith("."):
        raise BadSetting(f"run_key = {run_key!r} must be a file name of letters, digits, '.', '-' and '_'")
    return Path(base) / run_key


class RunRecorder:
    """Writes the run folder, and reads it when a run resumes.

    Args:
        path: The run folder.
        manifest: Content of `manifest.json`.
        accept_changes: Whether a resumed run may have other settings.
        track: Experiment trackers.
        is_kept: Whether the folder remains after the run, so that trackers may write into it.
        keep: Number of checkpoints to keep besides the best one.

    Raises:
        RunFolderError: The run cannot be resumed with this manifest.
    """

    def __init__(
        self, path: Path, manifest: Mapping[str, Any], accept_changes: bool = False, track: Sequence[Any] = (),
        is_kept: bool = True, keep: int = KEPT,
    ) -> None:  # fmt: skip
        self._now, self._keep = manifest, keep
        self._gate = Gate.parse(manifest["gate"]) if manifest.get("gate") else None
        self._best, self._passes = BestRound(self._gate), self._gate is None
        self.changes: list[Change] = []
        self.resumed = (path / MANIFEST).exists()
        if self.resumed:
            self.folder = RunFolder.open(path, PREVIOUS_S)
            try:
                self.changes = find_changes(self.folder.manifest, manifest, accept_changes)
            except RunFolderError:
                self.folder.close()
                raise
            self.folder.update_manifest(
                status="running", why=None, rounds=manifest.get("rounds"), gate=manifest.get("gate")
            )
            self.folder.log("resumed")
        else:
            self.folder = RunFolder.create(path, manifest)
            self.folder.log("started", method=manifest["method"])
        self.late = LateSpool(path / LATE)
        self.sink = open_sinks(track, path if is_kept else None, self._log_sink_failure)
        self.sink.on_start(dict(self.folder.manifest))

    def log(self, event: str, **fields: Any) -> None:
        """Append an event to log.jsonl, and pass it to the trackers."""
        self.folder.log(event, **fields)
        self.sink.on_event(event, fields)

    def _log_sink_failure(self, name: str, why: str) -> None:
        _log.warning("the tracker %s failed and is disabled: %s", name, why)
        self.folder.log("sink failed", sink=name, why=why)

    def note_changes(self, round_number: int) -> None:
        """Record changed settings in the manifest, before the first round that uses them."""
        if not self.changes:
            return
        noted = [{"after_round": round_number, **asdict(change)} for change in self.changes]
        fields = {field: self._now[field] for field in CHANGEABLE if field in self._now}
        self.folder.update_manifest(**fields, changes=[*self.folder.manifest.get("changes", []), *noted])
        self.changes = []

    def ledgers(self) -> tuple[Ledger, Ledger] | None:
        """Return the ledger that T is computed from and that of the last checkpoint; None without a checkpoint."""
        loaded = Checkpoints(self.folder.path / CHECKPOINT).load_latest() if self.resumed else None
        if loaded is None:
            return None
        blob, arrays = loaded
        clients = tuple(blob["server"]["clients"])
        columns = {name: arrays[f"engine.setup.{name}"] for name in _SETUP}
        first = _ledger(clients[: len(columns["size"])], columns)
        return first, _ledger(clients, {name: arrays[f"server.ledger.{name}"] for name in _SETUP})

    def restore(self, template: ServerState) -> tuple[ServerState, dict[str, Any]] | None:
        """Return the state of the last checkpoint and the engine's snapshot."""
        if not self.resumed:
            return None
        restored = self.folder.restore(template)
        if restored is None:
            return None
        self._best.add_all(self.folder.frames()["evals"])
        state, engine, _ = restored
        if RELEASES in engine:  # what a rollback removed stays spent
            released = self.folder.manifest.get(RELEASED, {})
            engine[RELEASES] = {**released, **engine[RELEASES]} | {
                client: max(count, engine[RELEASES].get(client, 0)) for client, count in released.items()
            }
        return state, engine

    def late_reports(self) -> list[LateReport]:
        """Return the late reports that arrived before the resume and have not joined a round."""
        clients = self.folder.frames()["clients"]
        joined = clients.filter(clients["outcome"] == JOINED)
        return self.late.load(set(zip(joined["client"].to_list(), joined["round"].to_list(), strict=True)))

    def round(
        self, before: ServerState, after: ServerState, result: RoundResult, evaluation: Evaluation | None,
        metrics: Mapping[str, Any], clients: ClientSpread | None = None,
    ) -> None:  # fmt: skip
        """Record the rows of a round and its metrics in Flower's `Result`; `clients` summarizes their evaluations."""
        evaluations = [] if evaluation is None else [
            EvalRow.from_evaluation(after, before.clock_s, evaluation, clients=clients)
        ]  # fmt: skip
        row, rows = RoundRow.from_round(before, after, result), ClientRow.from_round(result)
        self.folder.record(row, evaluations, rows, metrics)
        self.sink.on_clients(rows)
        self.sink.on_round(row._asdict())
        for each in evaluations:
            self._add_evaluation(each)

    def _add_evaluation(self, row: EvalRow) -> None:
        values = row.to_dict()
        self.sink.on_evaluation(values)
        passed, self._passes = self._passes, self._best.add(values)
        if passed != self._passes:
            event = "meets the gate" if self._passes else "refused by the gate"
            self.log(event, round=row.round, why=f"the gate is {self._gate}")

    def privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Record the privacy loss of every client."""
        self.folder.record_privacy(rows)
        self.sink.on_privacy(rows)

    def start(self, evaluation: Evaluation, metrics: Mapping[str, Any], clients: ClientSpread | None = None) -> None:
        """Record the evaluation before the first round."""
        spread = clients if clients is not None else ClientSpread()
        row = EvalRow(0, 0.0, 0.0, evaluation.accuracy, evaluation.loss, ROUNDS, *spread, metrics=evaluation.metrics)
        self.folder.record(None, [row], (), metrics)
        self._add_evaluation(row)

    def checkpoint(
        self, state: ServerState, first: Ledger, engine: Mapping[str, Any], layout: Layout, model: Weights
    ) -> None:
        """Save a checkpoint and all tables."""
        columns = {f"setup.{name}": np.array(getattr(first, name)) for name in _SETUP}
        if model is not state.weights:  # the method delivers an average
            columns[MODEL_ARRAY.removeprefix("engine.")] = model
        named = {**engine, LAYOUT: [[name, list(shape)] for name, shape in layout]}
        pinned = () if self._best.round is None else (self._best.round,)
        self.folder.checkpoint(state, named, columns, self._keep, pinned)
        self.folder.write_tables()

    def close(self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None) -> None:
        """Record how the run ended, and close the folder."""
        self.folder.finish(status, why, weights, layout)
        if status == "done" and not self._passes:
            self.log("model not delivered", why=f"it does not meet the gate {self._gate}")
        elif status == "done" and (model := self.folder.path / MODEL).is_file():
            self.sink.on_model(model)
        self.sink.on_end(status)
        self.folder.close()


class LateSpool:
    """Keeps late reports that have not joined a round in files, so that they survive a killed server.

    Args:
        folder: Folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, late: LateReport) -> None:
        """Write a report."""
        self._folder.mkdir(exist_ok=True)
        report = late.report
        part = {} if report.part is None else {"part": report.part.astype(np.uint8)}
        arrays = {f"arrays.{name}": values for name, values in report.arrays.items()}
        plain = {name: getattr(report, name) for name in ("client", "weight", "epochs", "size")}
        details = {
            **plain, "round": late.round, "summary": asdict(report.summary), "timings": asdict(report.timings),
            "metrics": dict(late.metrics.metric_records["metrics"]), "up_bytes": late.up_bytes,
        }  # fmt: skip
        packed = {
            name: np.ascontiguousarray(each) for name, each in ({"update": report.update} | arrays | part).items()
        }
        write_bytes(self._path(late), safetensors.numpy.save(packed, {"report": dumps(details)}))

    def load(self, joined: Collection[tuple[str, int]]) -> list[LateReport]:
        """Return the saved reports, oldest first, and remove unreadable ones.

        Args:
            joined: Clients and the rounds in which their late reports joined.
        """
        loaded = []
        for path in sorted(self._folder.glob("*.safetensors")):
            try:
                with safetensors.safe_open(path, "numpy") as file:
                    details = loads(file.metadata()["report"])
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
                path.unlink()
                continue
            late = _late_report(details, arrays)
            if not any(client == late.report.client and number > late.round for client, number in joined):
                loaded.append(late)
        return loaded

    def prune(self, pending: Iterable[LateReport]) -> None:
        """Remove the files of all reports that are not pending any more."""
        kept = {self._path(late) for late in pending}
        for path in set(self._folder.glob("*.safetensors")) - kept:
            path.unlink()

    def _path(self, late: LateReport) -> Path:
        digest = hashlib.blake2b(late.report.client.encode(), digest_size=8).hexdigest()
        return self._folder / f"{late.round:08d}-{digest}.safetensors"


def _late_report(details: Mapping[str, Any], arrays: Mapping[str, Any]) -> LateReport:
    summary = {**details["summary"], "released": tuple(details["summary"]["released"])}
    report = ClientReport(
        client=details["client"], update=arrays["update"], weight=details["weight"], epochs=details["epochs"],
        summary=Summary(**summary), timings=Timings(**details["timings"]), size=details["size"],
        arrays={name.removeprefix("arrays."): each for name, each in arrays.items() if name.startswith("arrays.")},
        part=arrays["part"].astype(bool) if "part" in arrays else None,
    )  # fmt: skip
    metrics = RecordDict({"metrics": MetricRecord(details["metrics"])})
    return LateReport(report, details["round"], metrics, details["up_bytes"])


def ending_status(error: BaseException) -> tuple[str, str]:
    """Return the status and the reason of a run that ended with an error. `flwr stop` exits with code 0."""
    match error:
        case FedBalancerError():
            return "failed", str(error)
        case KeyboardInterrupt():
            return "stopped", "interrupted"
        case SystemExit(code=0 | None):
            return "stopped", "stopped by `flwr stop` or a signal"
        case SystemExit():
            return "failed", f"the ServerApp exited with code {error.code}"
        case _:
            return "failed", repr(error)


def make_manifest(
    task: str, method: Method, seed: int, settings: Settings, rounds: int, **more: Any
) -> dict[str, Any]:  # fmt: skip
    """Return the manifest of a run on Flower: the fields of a simulated run and `more`."""
    content = new_manifest(
        task={"name": task, "variant": "", "scale": "real"},
        method=method.name,
        seed=seed,
        settings=describe_settings(settings, method),
        rounds=rounds,
        engine="flower",
        device="real",
        **more,
    )
    return content | {"versions": {**content["versions"], "flwr": version("flwr")}}


def _ledger(clients: tuple[str, ...], columns: Mapping[str, Any]) -> Ledger:
    ledger = Ledger.start(clients, columns["size"], columns["network_s"], columns["batch_s_sum"][:, None])
    return replace(ledger, position=Positions(clients), batch_s_count=columns["batch_s_count"])
