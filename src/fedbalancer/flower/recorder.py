"""The run folder of a run on Flower: the files of a simulated run, and a checkpoint after every round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting, FedBalancerError, RunFolderError
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import Evaluation, Layout, Ledger, RoundResult, ServerState, Weights
from fedbalancer.core.types.state import Positions
from fedbalancer.methods.composition import Method
from fedbalancer.methods.fields import describe_settings
from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder, new_manifest
from fedbalancer.store.checkpoint import Checkpoints
from fedbalancer.store.contents import CHECKPOINT, MANIFEST
from fedbalancer.store.rows import ROUNDS, ClientSpread

FIXED = ("engine", "method", "seed", "aggregate")
"""Fields of the manifest that must not change when a run resumes."""
CHANGEABLE = ("settings", "train_config")
"""Fields that may change with `accept_changes`."""
WITHOUT_EFFECT = ("rounds", "checkpoint_s", "save_exact_losses")
"""Settings that do not affect training."""


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

    Raises:
        RunFolderError: The run cannot be resumed with this manifest.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], accept_changes: bool = False) -> None:
        self._now = manifest
        self.changes: list[Change] = []
        self.resumed = (path / MANIFEST).exists()
        if self.resumed:
            self.folder = RunFolder.open(path, PREVIOUS_S)
            try:
                self.changes = find_changes(self.folder.manifest, manifest, accept_changes)
            except RunFolderError:
                self.folder.close()
                raise
            self.folder.update_manifest(status="running", why=None, rounds=manifest.get("rounds"))
            self.folder.log("resumed")
        else:
            self.folder = RunFolder.create(path, manifest)
            self.folder.log("started", method=manifest["method"])

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
        return None if restored is None else (restored[0], restored[1])

    def round(
        self, before: ServerState, after: ServerState, result: RoundResult, evaluation: Evaluation | None,
        metrics: Mapping[str, Any], clients: ClientSpread | None = None,
    ) -> None:  # fmt: skip
        """Record the rows of a round and its metrics in Flower's `Result`; `clients` summarizes their evaluations."""
        evaluations = [] if evaluation is None else [
            EvalRow.from_evaluation(after, before.clock_s, evaluation, clients=clients)
        ]  # fmt: skip
        self.folder.record(
            RoundRow.from_round(before, after, result), evaluations, ClientRow.from_round(result), metrics
        )

    def start(self, evaluation: Evaluation, metrics: Mapping[str, Any], clients: ClientSpread | None = None) -> None:
        """Record the evaluation before the first round."""
        spread = clients if clients is not None else ClientSpread()
        row = EvalRow(0, 0.0, 0.0, evaluation.accuracy, evaluation.loss, ROUNDS, *spread, metrics=evaluation.metrics)
        self.folder.record(None, [row], (), metrics)

    def checkpoint(self, state: ServerState, first: Ledger, engine: Mapping[str, Any]) -> None:
        """Save a checkpoint and all tables."""
        columns = {f"setup.{name}": np.array(getattr(first, name)) for name in _SETUP}
        self.folder.checkpoint(state, engine, columns)
        self.folder.write_tables()

    def close(self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None) -> None:
        """Record how the run ended, and close the folder."""
        self.folder.finish(status, why, weights, layout)
        self.folder.close()


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
