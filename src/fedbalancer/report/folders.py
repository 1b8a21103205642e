"""What a report reads: a run folder, or a comparison's folder of run folders.

A run that failed, was stopped, still goes on, is absent or is damaged is loaded as far as it goes and says so in its
`status` and `why`; only a folder that is neither a run nor a comparison is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.errors import RunFolderError
from fedbalancer.report.fairness import with_selections
from fedbalancer.report.participation import OUTCOMES, SELECTIONS, TIMES, outcomes, selections, times
from fedbalancer.report.refused import REFUSED, refused
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
from fedbalancer.store.glossary import RUN
from fedbalancer.store.rows import ROUNDS as BY_ROUNDS
from fedbalancer.store.seals import damaged, is_unchanged

EVALS, _OF_ROUND = schema_of(EvalRow), schema_of(RoundRow)
POPULATION = {**schema_of(PopulationRow), "selected": int}
ROUNDS = {
    name: _OF_ROUND[name]
    for name in (
        "round", "start_s", "end_s", "deadline_s", "loss_threshold", "loss_threshold_ratio", "deadline_ratio",
        "selected", "completed",
    )
}  # fmt: skip
MORE = {
    name: _OF_ROUND.get(name, float)
    for name in (
        "down_bytes", "up_bytes", "device_s", "deadline_low_s", "deadline_high_s", "loss_low", "loss_mean", "loss_high",
    )
}  # fmt: skip
"""Columns of rounds.parquet that older versions did not record: null where they are absent."""
COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
"""What a round costs, by the columns of rounds.parquet."""
TRAFFIC = {name: _OF_ROUND[name] for name in ("start_s", "end_s", *COSTS)}
CLASSES = schema_of(ClassRow)
PRIVACY = {
    name: schema_of(PrivacyRow)[name] for name in ("client", "releases", "epsilon", "model_epsilon", "whole_epsilon")
}


@dataclass(frozen=True, eq=False)
class RunCurve:
    """What scoring needs of one run: its evaluations by rounds (round, start_s, clock_s, accuracy), its status, the
    clock at the end of its last round (None: that of its last evaluation), its traffic (start_s, end_s and the costs
    of every round), the evaluations on its grid of seconds, and its population with how often each client was selected.
    The last three are None if the run did not record them."""

    method: str
    seed: int
    evals: pl.DataFrame
    status: str = "done"
    end_s: float | None = None
    traffic: pl.DataFrame | None = None
    grid: pl.DataFrame | None = None
    population: pl.DataFrame | None = None

    @property
    def has_grid(self) -> bool:
        """Whether the run was evaluated on a grid of seconds."""
        return self.grid is not None and self.grid.height > 0

    @property
    def last_s(self) -> float:
        """How far the run has come on the simulated clock."""
        if self.end_s is not None:
            return self.end_s
        return float(self.evals["clock_s"].max() or 0.0) if self.evals.height else 0.0  # type: ignore[arg-type]

    @property
    def last_accuracy(self) -> float | None:
        """Of the last evaluation; None if there is none."""
        return self.evals["accuracy"][-1] if self.evals.height else None

    def covers(self, budget_s: float | None) -> bool:
        """Whether the run can be scored: it is done, or has come to the end of the budget."""
        return self.status == "done" or (budget_s is not None and self.last_s >= budget_s > 0)

    def spent(self, column: str, until_s: float, clock: str = "end_s") -> float | None:
        """Sum of a column of the traffic over the rounds that end (or, by `start_s`, start) by then; None if one of
        them did not record it."""
        if self.traffic is None or column not in self.traffic.columns:
            return None
        values = self.traffic.filter(pl.col(clock) <= until_s)[column]
        return None if values.null_count() else float(values.sum())


def by_schedule(evals: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Evaluations by rounds, and those on the grid of seconds. Older versions knew rounds only, and said nothing."""
    if "schedule" not in evals.columns:
        return evals, evals.clear()
    is_rounds = pl.col("schedule") == BY_ROUNDS
    return evals.filter(is_rounds), evals.filter(~is_rounds)


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run as found on disk."""

    curve: RunCurve
    why: str = ""
    rounds: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROUNDS))
    outcomes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OUTCOMES))
    selections: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SELECTIONS))
    times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIMES))
    manifest: Mapping[str, Any] = field(default_factory=dict)
    classes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLASSES))
    privacy: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PRIVACY))
    refused: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REFUSED))


@dataclass(frozen=True, eq=False)
class Results:
    """All that a report is made from. A single run is a comparison of one method on one seed. `rule` is that by which
    the runs were evaluated and stopped."""

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

    @property
    def curves(self) -> tuple[RunCurve, ...]:
        return tuple(run.curve for run in self.runs)

    def of(self, method: str) -> tuple[StoredRun, ...]:
        """The runs of a method that belong in its curves: those that can be scored or, if none can, all."""
        mine = tuple(
            run for run in self.runs if run.curve.method == method and run.rounds.height + run.curve.evals.height
        )
        return tuple(run for run in mine if run.curve.covers(self.budgets_s.get(run.curve.seed))) or mine


Load = Callable[..., StoredRun]
"""What reads a run, like `load_run`."""


def load(folder: Path, read: Load | None = None) -> Results:
    """The results in a comparison folder or a run folder; `read` may keep runs that have not changed."""
    if (folder / COMPARISON).is_file():
        return load_comparison(folder, read)
    if (folder / "manifest.json").is_file():
        return _as_results(folder, (read or load_run)(folder))
    raise RunFolderError(
        f"{folder} holds neither comparison.json nor manifest.json; give a folder that run or compare made"
    )


def load_comparison(folder: Path, read: Load | None = None) -> Results:
    """The runs that `comparison.json` promises, each as far as it is there."""
    found, read = ComparisonFile.read(folder), read or load_run
    runs = tuple(
        read(folder / method / f"seed-{seed}", method, seed) for method in found.methods for seed in found.seeds
    )
    return Results(
        folder=folder,
        task=found.task,
        variant=found.variant,
        scale=next(filter(None, [found.scale, *(str(_task_of(run).get("scale") or "") for run in runs)]), ""),
        methods=found.methods,
        seeds=found.seeds,
        rounds=found.rounds,
        budgets_s=found.budgets_s,
        runs=runs,
        rule=found.rule,
        targets=found.targets,
    )


def load_run(folder: Path, method: str | None = None, seed: int | None = None) -> StoredRun:
    """One run folder; `method` and `seed` are what the comparison calls it."""
    manifest, problem = _read_json(folder / "manifest.json")
    method = str(manifest.get("method", folder.parent.name)) if method is None else method
    seed = int(manifest.get("seed") or 0) if seed is None else seed
    if problem:
        status = "damaged" if (folder / "manifest.json").exists() else "missing"
        return StoredRun(RunCurve(method, seed, pl.DataFrame(schema=EVALS), status, 0.0), why=problem)
    status, why = str(manifest.get("status") or "unknown"), str(manifest.get("why") or "")
    evals, evals_problem = _read_parquet(folder / "evals.parquet", EVALS, defaults=EvalRow._field_defaults)
    rounds, rounds_problem = _read_parquet(folder / "rounds.parquet", ROUNDS | MORE, defaults=dict.fromkeys(MORE))
    rounds = _derived(rounds)
    ends, outcomes_problem = _read_parquet(folder / "clients.parquet", OUTCOMES, outcomes)
    problems = [text for text in (evals_problem, rounds_problem, outcomes_problem) if text] or _unlike(folder, manifest)
    if problems and status == "done":
        status = "damaged"
    end_s = float(rounds["end_s"].max()) if rounds.height else None  # type: ignore[arg-type]
    # older versions did not record traffic, or not all of it
    traffic, unknown = _read_parquet(folder / "rounds.parquet", TRAFFIC, defaults=RoundRow._field_defaults)
    by_rounds, grid = by_schedule(evals)
    curve = RunCurve(
        method, seed, by_rounds, status, end_s, None if unknown or not rounds.height else traffic, grid,
        _population(folder, rounds),
    )  # fmt: skip
    why = "; ".join(filter(None, [why, *problems]))
    people, _ = _read_parquet(folder / "population.parquet", {"client": pl.String, "device": pl.String})
    clients = folder / "clients.parquet"  # of an older version it may lack what these ask for: then there is nothing
    chosen, _ = _read_parquet(clients, SELECTIONS, lambda rows: selections(rows, people))
    spent, _ = _read_parquet(clients, TIMES, lambda rows: times(rows, rounds, people))
    told, _ = _read_parquet(folder / "privacy.parquet", PRIVACY, defaults=PrivacyRow._field_defaults)
    trained, _ = _read_parquet(folder / "classes.parquet", CLASSES)
    return StoredRun(
        curve, why, rounds, ends, chosen, spent, manifest, trained, told, _read_parquet(clients, REFUSED, refused)[0]
    )


def _as_results(folder: Path, run: StoredRun) -> Results:
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
    )


def _task_of(run: StoredRun) -> Mapping[str, Any]:
    return task if isinstance(task := run.manifest.get("task"), dict) else {"name": task}


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The content, and in words what is wrong with the file (empty: nothing)."""
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
    ask: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda rows: rows,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[pl.DataFrame, str]:
    """The columns of `schema`, and in words what is wrong with the file. A run that has not come far has no file; one
    of an older version lacks columns, for which there may be `defaults`."""
    if not path.exists():
        return pl.DataFrame(schema=schema), ""
    try:
        rows = ask(pl.scan_parquet(path, glob=False))
        known = rows.collect_schema().names() if defaults else list(schema)
        lacking = {
            name: pl.lit(value) for name, value in (defaults or {}).items() if name in schema and name not in known
        }
        return rows.with_columns(**lacking).select(list(schema)).collect().cast(dict(schema)), ""  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        return pl.DataFrame(schema=schema), f"{path.name} is unreadable: {str(error).splitlines()[0]}"


def _unlike(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the run ended, in words."""
    changed = [] if is_unchanged(manifest) else ["manifest.json was changed since it was written"]
    return [*changed, *(f"{name} does not match its checksum" for name in damaged(folder, manifest))]


def _derived(rounds: pl.DataFrame) -> pl.DataFrame:
    """The rounds with what follows from their columns."""
    return rounds.with_columns(
        # Where late reports count, a round may have more reports than clients that were selected for it.
        dropped=(pl.col("selected") - pl.col("completed")).clip(lower_bound=0),
        sent_bytes=pl.col("down_bytes") + pl.col("up_bytes"),
    )


def _population(folder: Path, rounds: pl.DataFrame) -> pl.DataFrame | None:
    """The clients with how often each was selected; None if the run did not come to its end, or is of older version."""
    if not (folder / "population.parquet").exists() or not (folder / "clients.parquet").exists():
        return None
    try:
        population = pl.read_parquet(folder / "population.parquet", glob=False).drop(list(RUN), strict=False)
        clients = pl.scan_parquet(folder / "clients.parquet", glob=False)
        return with_selections(population, rounds, clients).cast(POPULATION)  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
