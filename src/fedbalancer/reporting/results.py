"""The results that a report is made from, read from a run folder or a comparison folder.

A run that failed, was stopped, is still running, is missing or is damaged is loaded as far as possible; its `status`
and `why` say what is wrong. Only a folder that is neither a run nor a comparison is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.metrics import ACCURACY, LOSS, Metric
from fedbalancer.reporting.clients import (
    OUTCOMES,
    REJECTED,
    SELECTIONS,
    TIMES,
    add_selections,
    average_phase_times,
    count_outcomes,
    count_rejected,
    count_selections,
)
from fedbalancer.store import (
    COMPARISON,
    ClassRow,
    ComparisonFile,
    EvalRow,
    PopulationRow,
    PrivacyRow,
    RoundRow,
    schema_of,
)
from fedbalancer.store.comparison import TARGETS
from fedbalancer.store.contents import find_damaged_files, is_unchanged
from fedbalancer.store.rows import ROUNDS as BY_ROUNDS
from fedbalancer.store.rows import RunColumns

EVALS, _ROUND = schema_of(EvalRow), schema_of(RoundRow)
POPULATION = {**schema_of(PopulationRow), "selected": int}
ROUNDS = {
    name: _ROUND[name]
    for name in (
        "round", "start_s", "end_s", "deadline_s", "loss_threshold", "loss_threshold_ratio", "deadline_ratio",
        "selected", "completed",
    )
}  # fmt: skip
OPTIONAL = {name: kind for name, kind in _ROUND.items() if name not in ROUNDS}
"""Columns of rounds.parquet that a run may not have recorded; null where they are absent."""
COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
"""Columns of rounds.parquet with the cost of a round."""
TRAFFIC = {name: _ROUND[name] for name in ("start_s", "end_s", *COSTS)}
CLASSES = schema_of(ClassRow)
PRIVACY = {
    name: schema_of(PrivacyRow)[name] for name in ("client", "releases", "epsilon", "model_epsilon", "whole_epsilon")
}


@dataclass(frozen=True, eq=False)
class RunCurve:
    """The part of a run that scoring needs.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        evals: Evaluations after rounds (round, start_s, clock_s and metrics).
        status: Status of the run, such as "done".
        end_s: Clock at the end of the last round. None: the clock of the last evaluation.
        traffic: start_s, end_s and costs of every round. None if not recorded.
        grid: Evaluations on the grid of seconds. None if not recorded.
        population: The clients with their number of selections. None if not recorded.
        metric: The metric by which the run is scored.
    """

    method: str
    seed: int
    evals: pl.DataFrame
    status: str = "done"
    end_s: float | None = None
    traffic: pl.DataFrame | None = None
    grid: pl.DataFrame | None = None
    population: pl.DataFrame | None = None
    metric: Metric = ACCURACY

    @property
    def has_grid(self) -> bool:
        """Whether the run was evaluated on a grid of seconds."""
        return self.grid is not None and self.grid.height > 0

    @property
    def last_s(self) -> float:
        """The last second of the simulated clock that the run covers."""
        if self.end_s is not None:
            return self.end_s
        return float(self.evals["clock_s"].max() or 0.0) if self.evals.height else 0.0  # type: ignore[arg-type]

    @property
    def last_value(self) -> float | None:
        """Value of the metric at the last evaluation; None if there is none."""
        return self.evals[self.metric.name][-1] if self.evals.height and self.metric.name in self.evals else None

    def covers(self, budget_s: float | None) -> bool:
        """Return whether the run can be scored: it is done, or it covers the whole budget."""
        return self.status == "done" or (budget_s is not None and self.last_s >= budget_s > 0)

    def spent(self, column: str, until_s: float, clock: str = "end_s") -> float | None:
        """Sum a cost over the rounds until a time.

        Args:
            column: One of `COSTS`.
            until_s: The time.
            clock: Which rounds count: those that end ("end_s") or start ("start_s") by then.

        Returns:
            The sum, or None if one of these rounds did not record the column.
        """
        if self.traffic is None or column not in self.traffic.columns:
            return None
        values = self.traffic.filter(pl.col(clock) <= until_s)[column]
        return None if values.null_count() else float(values.sum())


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run as read from its folder; `why` is the reason for a status other than "done"."""

    curve: RunCurve
    why: str = ""
    rounds: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROUNDS))
    outcomes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OUTCOMES))
    selections: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SELECTIONS))
    times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIMES))
    manifest: Mapping[str, Any] = field(default_factory=dict)
    classes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLASSES))
    privacy: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PRIVACY))
    rejected: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REJECTED))


@dataclass(frozen=True, eq=False)
class Results:
    """All runs of a report. A single run is a comparison of one method on one seed.

    `rule` is the rule by which the runs were evaluated and stopped.
    """

    folder: Path
    task: str
    variant: str
    scale: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int | None
    budgets_s: Mapping[int, float]
    runs: tuple[StoredRun, ...]
    single: bool = False
    rule: str = "paper"
    targets: tuple[float, ...] = TARGETS
    metric: Metric = ACCURACY

    @property
    def curves(self) -> tuple[RunCurve, ...]:
        return tuple(run.curve for run in self.runs)

    def of(self, method: str) -> tuple[StoredRun, ...]:
        """Return the runs of a method to average: those that can be scored or, if none can, all that have rows."""
        started = tuple(
            run for run in self.runs if run.curve.method == method and run.rounds.height + run.curve.evals.height
        )
        return tuple(run for run in started if run.curve.covers(self.budgets_s.get(run.curve.seed))) or started


Load = Callable[..., StoredRun]
"""A function that reads a run, with the signature of `load_run`."""


def load(folder: Path, read: Load | None = None) -> Results:
    """Load the results of a comparison folder or a run folder.

    Args:
        folder: The folder.
        read: Function that reads one run, for example from a cache. Default: `load_run`.

    Raises:
        RunFolderError: If the folder is neither a run nor a comparison.
    """
    if (folder / COMPARISON).is_file():
        return load_comparison(folder, read)
    if (folder / "manifest.json").is_file():
        return _wrap_run(folder, (read or load_run)(folder))
    raise RunFolderError(
        f"{folder} contains neither comparison.json nor manifest.json; pass a folder written by run or compare"
    )


def load_comparison(folder: Path, read: Load | None = None) -> Results:
    """Load all runs that `comparison.json` lists, each as far as it exists.

    Args:
        folder: The comparison folder.
        read: Function that reads one run. Default: `load_run`.

    Raises:
        RunFolderError: If comparison.json cannot be read.
    """
    comparison, read = ComparisonFile.read(folder), read or load_run
    metric = Metric.from_json(comparison.metric)
    runs = tuple(
        _score_by(read(folder / method / f"seed-{seed}", method, seed), metric)
        for method in comparison.methods
        for seed in comparison.seeds
    )
    return Results(
        folder=folder,
        task=comparison.task,
        variant=comparison.variant,
        scale=next(filter(None, [comparison.scale, *(str(_task_of(run).get("scale") or "") for run in runs)]), ""),
        methods=comparison.methods,
        seeds=comparison.seeds,
        rounds=comparison.rounds,
        budgets_s=comparison.budgets_s,
        runs=runs,
        rule=comparison.rule,
        targets=comparison.targets,
        metric=metric,
    )


def load_run(folder: Path, method: str | None = None, seed: int | None = None) -> StoredRun:
    """Load one run folder.

    Args:
        folder: The run folder.
        method: Name of the method in the comparison. Default: the name in the manifest.
        seed: Seed in the comparison. Default: the seed in the manifest.
    """
    manifest, problem = _read_json(folder / "manifest.json")
    method = str(manifest.get("method", folder.parent.name)) if method is None else method
    seed = int(manifest.get("seed") or 0) if seed is None else seed
    if problem:
        status = "damaged" if (folder / "manifest.json").exists() else "missing"
        return StoredRun(RunCurve(method, seed, pl.DataFrame(schema=EVALS), status, 0.0), why=problem)
    status, why = str(manifest.get("status") or "unknown"), str(manifest.get("why") or "")
    evals, evals_problem = _read_evals(folder / "evals.parquet")
    columns = ROUNDS | OPTIONAL
    rounds, rounds_problem = _read_parquet(folder / "rounds.parquet", columns, defaults=dict.fromkeys(OPTIONAL))
    rounds = _add_derived_columns(rounds)
    clients = folder / "clients.parquet"
    outcomes, outcomes_problem = _read_parquet(clients, OUTCOMES, count_outcomes)
    problems = [text for text in (evals_problem, rounds_problem, outcomes_problem) if text] or _mismatches(
        folder, manifest
    )
    if problems and status == "done":
        status = "damaged"
    end_s = float(rounds["end_s"].max()) if rounds.height else None  # type: ignore[arg-type]
    # Some runs recorded no traffic, or only part of it.
    traffic, unknown = _read_parquet(folder / "rounds.parquet", TRAFFIC, defaults=RoundRow._field_defaults)
    by_rounds, grid = split_by_schedule(evals)
    curve = RunCurve(
        method, seed, by_rounds, status, end_s, None if unknown or not rounds.height else traffic, grid,
        _read_population(folder, rounds), _metric_of(manifest, evals),
    )  # fmt: skip
    devices, _ = _read_parquet(folder / "population.parquet", {"client": pl.String, "device": pl.String})
    return StoredRun(
        curve=curve,
        why="; ".join(filter(None, [why, *problems])),
        rounds=rounds,
        outcomes=outcomes,
        # A clients.parquet that lacks the columns of one of these tables gives an empty table.
        selections=_read_parquet(clients, SELECTIONS, lambda rows: count_selections(rows, devices))[0],
        times=_read_parquet(clients, TIMES, lambda rows: average_phase_times(rows, rounds, devices))[0],
        manifest=manifest,
        classes=_read_parquet(folder / "classes.parquet", CLASSES)[0],
        privacy=_read_parquet(folder / "privacy.parquet", PRIVACY, defaults=PrivacyRow._field_defaults)[0],
        rejected=_read_parquet(clients, REJECTED, count_rejected)[0],
    )


def split_by_schedule(evals: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split evaluations into those after rounds and those on the grid of seconds."""
    if "schedule" not in evals.columns:
        return evals, evals.clear()
    is_rounds = pl.col("schedule") == BY_ROUNDS
    return evals.filter(is_rounds), evals.filter(~is_rounds)


def _wrap_run(folder: Path, run: StoredRun) -> Results:
    task, budget_s, seed = _task_of(run), run.manifest.get("budget_s"), run.curve.seed
    return Results(
        folder=folder,
        task=str(task.get("name") or "unnamed task"),
        variant=str(task.get("variant") or ""),
        scale=str(task.get("scale") or ""),
        methods=(run.curve.method,),
        seeds=(seed,),
        rounds=None,
        budgets_s={seed: float(budget_s)} if budget_s else {},
        runs=(run,),
        single=True,
        metric=run.curve.metric,
    )


def _metric_of(manifest: Mapping[str, Any], evals: pl.DataFrame) -> Metric:
    """Return the metric of a run; the loss if the run names no metric and has no accuracy."""
    if manifest.get("metric") is None and evals.height and not evals["accuracy"].is_finite().any():
        return LOSS
    return Metric.from_json(manifest.get("metric"))


def _score_by(run: StoredRun, metric: Metric) -> StoredRun:
    return run if run.curve.metric == metric else replace(run, curve=replace(run.curve, metric=metric))


def _task_of(run: StoredRun) -> Mapping[str, Any]:
    return task if isinstance(task := run.manifest.get("task"), dict) else {"name": task}


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content and a description of what is wrong with the file ("" if nothing is)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"no {path.name}"
    except (OSError, ValueError) as error:
        return {}, f"{path.name} is unreadable: {error}"
    return (content, "") if isinstance(content, dict) else ({}, f"{path.name} is not a JSON object")


def _read_parquet(
    path: Path,
    schema: Mapping[str, Any],
    query: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda rows: rows,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[pl.DataFrame, str]:
    """Return the columns of `schema` and a description of what is wrong with the file ("" if nothing is).

    A run that has just started has no file. `defaults` fill columns that the file does not have.
    """
    if not path.exists():
        return pl.DataFrame(schema=schema), ""
    try:
        rows = query(pl.scan_parquet(path, glob=False))
        known = rows.collect_schema().names() if defaults else list(schema)
        missing = {
            name: pl.lit(value) for name, value in (defaults or {}).items() if name in schema and name not in known
        }
        return rows.with_columns(**missing).select(list(schema)).collect().cast(dict(schema)), ""  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        return pl.DataFrame(schema=schema), f"{path.name} is unreadable: {str(error).splitlines()[0]}"


def _read_evals(path: Path) -> tuple[pl.DataFrame, str]:
    """Return the evaluations with all metrics, and a description of what is wrong with the file."""
    return _read_parquet(path, EVALS | _metric_columns(path, EVALS), defaults=EvalRow._field_defaults)


def _metric_columns(path: Path, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of further metrics in a file; none if it cannot be read."""
    try:
        schema = pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return {}
    known = {*declared, *RunColumns._fields}
    return {name: kind for name, kind in schema.items() if name not in known and kind == pl.Float64}


def _mismatches(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Describe the files that have changed since the run ended."""
    changed = [] if is_unchanged(manifest) else ["manifest.json was changed since it was written"]
    return [*changed, *(f"{name} does not match its checksum" for name in find_damaged_files(folder, manifest))]


def _add_derived_columns(rounds: pl.DataFrame) -> pl.DataFrame:
    return rounds.with_columns(
        # With late reports, a round can have more reports than clients that were selected for it.
        dropped=(pl.col("selected") - pl.col("completed")).clip(lower_bound=0),
        sent_bytes=pl.col("down_bytes") + pl.col("up_bytes"),
    )


def _read_population(folder: Path, rounds: pl.DataFrame) -> pl.DataFrame | None:
    """Return the clients with their number of selections; None if the run did not finish or recorded no population."""
    if not (folder / "population.parquet").exists() or not (folder / "clients.parquet").exists():
        return None
    try:
        population = pl.read_parquet(folder / "population.parquet", glob=False).drop(
            list(RunColumns._fields), strict=False
        )
        clients = pl.scan_parquet(folder / "clients.parquet", glob=False)
        defaults = PopulationRow._field_defaults
        missing = {name: pl.lit(defaults[name]) for name in POPULATION if name in defaults and name not in population}
        return add_selections(population.with_columns(**missing), rounds, clients).cast(POPULATION)  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
