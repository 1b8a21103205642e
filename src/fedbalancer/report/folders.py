"""What a report reads: a run folder, or a comparison's folder of run folders.

A run that failed, was stopped, still goes on, is absent or is damaged is loaded as far as it goes and says so in its
`status` and `why`; only a folder that is neither a run nor a comparison is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.errors import RunFolderError
from fedbalancer.report.fairness import with_selections
from fedbalancer.report.participation import OUTCOMES, SELECTIONS, TIMES, outcomes, selections, times
from fedbalancer.report.refused import REFUSED, refused
from fedbalancer.report.stored import (
    CLASSES,
    EVALS,
    MORE,
    POPULATION,
    PRIVACY,
    ROUNDS,
    TRAFFIC,
    Results,
    RunCurve,
    StoredRun,
    by_schedule,
)  # fmt: skip
from fedbalancer.store import COMPARISON, ComparisonFile, EvalRow, PrivacyRow, RoundRow
from fedbalancer.store.glossary import RUN
from fedbalancer.store.seals import damaged, is_unchanged

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
