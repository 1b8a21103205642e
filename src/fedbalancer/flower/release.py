"""Models of a run on Flower: the best one, a gate on a hold-out metric, export, and a return to an earlier round.

This module does not need flwr.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.numpy

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import write_bytes
from fedbalancer.core.types import Layout
from fedbalancer.flower.operate import checkpoint_rounds, flower_manifest, read_tables
from fedbalancer.privacy.accounting import RELEASES
from fedbalancer.store import RunFolder
from fedbalancer.store.checkpoint import Checkpoints
from fedbalancer.store.contents import CHECKPOINT, MODEL

if TYPE_CHECKING:
    import polars as pl

LAYOUT, MODEL_ARRAY, WEIGHTS = "layout", "engine.model", "server.weights"
"""Entries of a checkpoint: names and shapes of the model, the delivered model if it differs from the weights, and the
weights."""
RELEASED = "released"
"""Field of the manifest: releases per client that a rollback removed from the checkpoints, or more."""


@dataclass(frozen=True)
class Gate:
    """A condition on a hold-out metric that a model must meet before it is delivered.

    Args:
        metric: Name of a metric of the evaluations.
        at_least: Smallest value. Default: none.
        at_most: Largest value. Default: none.

    Example:
        >>> gate = Gate.parse("accuracy >= 0.8")
        >>> gate.passes({"accuracy": 0.85}), gate.passes({"accuracy": 0.7}), gate.passes({})
        (True, False, False)
    """

    metric: str
    at_least: float = -math.inf
    at_most: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Return the gate that a text such as `accuracy >= 0.8` or `loss <= 0.5` describes.

        Args:
            text: Metric, `>=` or `<=`, and a number.

        Raises:
            BadSetting: The text has another form.
        """
        match = re.fullmatch(r"\s*([\w./-]+)\s*(>=|<=)\s*([-+.\deE]+)\s*", text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or math.isnan(value):
            raise BadSetting(f"gate = {text!r} must be METRIC >= NUMBER or METRIC <= NUMBER, as in 'accuracy >= 0.8'")
        return cls(match[1], value) if match[2] == ">=" else cls(match[1], at_most=value)

    def passes(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether an evaluation meets the condition. Without the metric it does not.

        Args:
            metrics: Values by the name of the metric.
        """
        value = metrics.get(self.metric)
        return isinstance(value, int | float) and self.at_least <= value <= self.at_most

    def __str__(self) -> str:
        return (
            f"{self.metric} >= {self.at_least:g}" if self.at_least > -math.inf else f"{self.metric} <= {self.at_most:g}"
        )


class BestRound:
    """The round with the best evaluation: the highest accuracy, or the lowest loss if there is no accuracy.

    Args:
        gate: Condition that the round must meet. None: no condition.
    """

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate, self._score = gate, -math.inf
        self.round: int | None = None

    def add(self, row: Mapping[str, Any]) -> bool:
        """Add an evaluation; returns whether it meets the gate.

        Args:
            row: A row of evals.parquet.
        """
        passes = self._gate is None or self._gate.passes(row)
        score = row["accuracy"] if math.isfinite(row["accuracy"]) else -row["loss"]
        if passes and row["round"] > 0 and score > self._score:
            self.round, self._score = int(row["round"]), score
        return passes

    def add_all(self, evals: pl.DataFrame) -> None:
        """Add all evaluations of a table.

        Args:
            evals: The table evals.parquet.
        """
        for row in evals.iter_rows(named=True):
            self.add(row)


def roll_back(folder: Path | str, to: int) -> dict[str, Any]:
    """Return a stopped run to an earlier checkpoint. It continues from there when the app is submitted again.

    Later rounds are removed from the tables. What their reports released about the clients' data stays counted in the
    privacy loss.

    Args:
        folder: The run folder.
        to: Round of the checkpoint.

    Returns:
        The rounds before and after, and the remaining checkpoints.

    Raises:
        RunFolderError: There is no such checkpoint, the run was simulated, or a server still writes to the folder.
    """
    folder = Path(folder)
    flower_manifest(folder)
    with RunFolder.open(folder) as run:
        rounds = checkpoint_rounds(folder)
        if to not in rounds:
            kept = ", ".join(map(str, rounds)) or "none"
            raise RunFolderError(f"{folder} has no checkpoint of round {to}; it has {kept} (Strategy(keep=...))")
        newest, _ = _load(folder, rounds[-1])
        released = Counter(run.manifest.get(RELEASED, {}))
        for client, count in newest["engine"].get(RELEASES, {}).items():
            released[client] = max(released[client], count)
        before = rounds[-1]
        run.roll_back(to)
        noted = [*run.manifest.get("rollbacks", []), {"from_round": before, "to_round": to}]
        (folder / MODEL).unlink(missing_ok=True)
        run.update_manifest(rollbacks=noted, **{RELEASED: dict(released)})
        run.finish("stopped", f"rolled back from round {before} to round {to}")
        run.log("rolled back", from_round=before, to_round=to)
    return {"folder": str(folder), "from_round": before, "to_round": to, "checkpoints": checkpoint_rounds(folder)}


def export_model(
    folder: Path | str, out: Path | str, at: int | None = None, best: bool = False, force: bool = False
) -> dict[str, Any]:
    """Write the model of a checkpoint as a safetensors file that names its run, round and manifest.

    Args:
        folder: The run folder; a server may be running.
        out: The file to write.
        at: Round of the checkpoint. Default: the newest.
        best: Whether to export the best checkpoint instead.
        force: Whether to export a model that does not meet the run's gate.

    Returns:
        The file, its SHA-256, and the metadata in it.

    Raises:
        RunFolderError: There is no such checkpoint, the run was simulated, or the model does not meet the gate.
        BadSetting: The file cannot be written.
    """
    folder, manifest = Path(folder), flower_manifest(Path(folder))
    evals = read_tables(folder)["evals"]
    gate = Gate.parse(manifest["gate"]) if manifest.get("gate") else None
    rounds = checkpoint_rounds(folder)
    if best:
        top = BestRound(gate)
        top.add_all(evals)
        at = top.round
        if at is None:
            raise RunFolderError(f"{folder} has no evaluation{f' that meets the gate {gate}' if gate else ''}")
    at = rounds[-1] if at is None and rounds else at
    if at not in rounds:
        kept = ", ".join(map(str, rounds)) or "none"
        raise RunFolderError(f"{folder} has no checkpoint of round {at}; it has {kept} (Strategy(keep=...))")
    row = next((row for row in evals.iter_rows(named=True) if row["round"] == at), {})
    if gate is not None and not gate.passes(row) and not force:
        value = row.get(gate.metric)
        raise RunFolderError(f"round {at} has {gate.metric} {value}, but the gate is {gate}; --force exports it anyway")
    blob, arrays = _load(folder, at)
    if LAYOUT not in blob["engine"]:
        raise RunFolderError(f"{folder} was written by an older version, whose checkpoints do not name the arrays")
    layout = Layout((name, tuple(shape)) for name, shape in blob["engine"][LAYOUT])
    metrics = {name: str(value) for name, value in row.items() if name in ("accuracy", "loss")}
    metadata = {
        "run": folder.resolve().name, "round": str(at), "manifest_sha256": str(manifest.get("sha256")), **metrics,
        **{name: str(manifest.get(name)) for name in ("method", "seed")},
    }  # fmt: skip
    weights = arrays[MODEL_ARRAY] if MODEL_ARRAY in arrays else arrays[WEIGHTS]
    packed = safetensors.numpy.save(layout.split(weights), metadata)
    if Path(out).is_dir():
        raise BadSetting(f"--out {out} cannot be written: it is a folder; pass the path of a new file")
    try:
        write_bytes(Path(out), packed)
    except OSError as error:
        raise BadSetting(f"--out {out} cannot be written: {error.strerror}; pass the path of a new file") from error
    return {"file": str(out), "sha256": hashlib.sha256(packed).hexdigest(), **metadata}


def _load(folder: Path, step: int) -> tuple[dict[str, Any], Any]:
    return Checkpoints(folder / CHECKPOINT).load(step)
