"""Executes a sample of recorded runs again and compares the bytes of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import fedbalancer
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.randomness import stream
from fedbalancer.experiments.benchmark.scoring import FILES
from fedbalancer.experiments.benchmark.suite import Suite, find_suite, hash_code, hash_data
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.sweep.plan import run_folder
from fedbalancer.experiments.trust import check_trusted, code_of
from fedbalancer.reporting.benchmark import RUNS
from fedbalancer.simulation.executors import Resources
from fedbalancer.store.contents import make_folder, read_manifest


@dataclass(frozen=True)
class Verdict:
    """The result of a run that was executed again.

    Args:
        cell: The cell.
        method: The full name of the method.
        seed: The seed.
        same: Whether all files have the recorded bytes.
        differing: The files that differ.
        notes: What differs between the two executions: data, code, processor or version; or why the run failed.
    """

    cell: str
    method: str
    seed: int
    same: bool
    differing: tuple[str, ...]
    notes: tuple[str, ...]


def choose_runs(runs: pl.DataFrame, count: int, seed: int = 0, cells: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Choose recorded runs at random, from as many cells as possible.

    Args:
        runs: The recorded runs.
        count: Number of runs.
        seed: Seed of the choice.
        cells: Names of cells. Default: all.

    Raises:
        BadSetting: If no recorded run can be executed again.
    """
    complete = [pl.col(_column(name)).is_not_null() for name in FILES if _column(name) in runs.columns]
    usable = runs.filter(pl.col("status") == "done", *complete)
    if cells:
        usable = usable.filter(pl.col("cell").is_in(list(cells)))
    rows = usable.sort("cell", "method", "owner", "seed").to_dicts()
    if not rows:
        raise BadSetting("no recorded run of these cells has the checksums of its files")
    order = stream(seed, "benchmark sample").permutation(len(rows)).tolist()
    drawn: dict[str, int] = {}
    ranked = []
    for number in order:
        drawn[rows[number]["cell"]] = drawn.get(rows[number]["cell"], 0) + 1
        ranked.append((drawn[rows[number]["cell"]], number))
    ranked.sort(key=lambda each: each[0])  # the first run of every cell, then the second ones
    return [rows[number] for _, number in ranked[:count]]


def verify(
    results: Path,
    out: Path,
    *,
    sample: int = 3,
    seed: int = 0,
    cells: Sequence[str] = (),
    trust: bool = False,
    say: Callable[[str], None] = lambda _: None,
    suites: Mapping[str, Suite] | None = None,
) -> list[Verdict]:
    """Execute recorded runs again and compare their bytes.

    Args:
        results: Folder of the results.
        out: Empty folder for the runs.
        sample: Number of runs.
        seed: Seed of the choice.
        cells: Names of cells. Default: all whose data are on this computer.
        trust: Execute code of submissions without asking.
        say: Called with a line of text for every run.
        suites: The suites by name. Default: those of this version.

    Returns:
        A verdict per run.

    Raises:
        RunFolderError: If there are no results.
        UntrustedCode: If a run needs code that is not trusted.
    """
    file, known = results / RUNS, find_suite if suites is None else suites.__getitem__
    if not file.is_file():
        raise RunFolderError(f"{results} has no benchmark results: there is no {RUNS}")
    runs = pl.read_parquet(file)
    if not cells:
        names = runs.select("suite", "cell").unique().rows()
        here = [known(name).cell(cell) for name, cell in names]
        cells = [cell.name for cell in here if not cell.why_missing()]
    chosen = choose_runs(runs, sample, seed, cells)
    code = hash_code(Path(fedbalancer.__file__).parent)
    verdicts = []
    with JobPool(None, 1, Resources(workers=1)) as pool:
        for number, row in enumerate(chosen):
            suite = known(row["suite"])
            folder = out / str(number)
            make_folder(folder)
            verdicts.append(_execute(suite, row, folder, pool, code, trust))
            outcome = "same bytes" if verdicts[-1].same else f"differs: {', '.join(verdicts[-1].differing)}"
            notes = f" ({'; '.join(verdicts[-1].notes)})" if verdicts[-1].notes else ""
            say(f"{row['cell']}, {row['method']}, seed {row['seed']}: {outcome}{notes}")
    return verdicts


def _execute(suite: Suite, row: Mapping[str, Any], out: Path, pool: JobPool, code: str, trust: bool) -> Verdict:
    """Run a method to its budget and, if it was extended, on to the target."""
    base = suite.cell(row["cell"]).base(row["method"])
    check_trusted(code_of(base), None if trust else ())
    plan = ComparisonPlan.make(base, [row["method"]], [row["seed"]], suite.extend)
    (spec,) = plan.specs
    place = run_folder(out, row["method"], row["seed"])
    events = pool.run([Job(spec, place)], lambda _: None, lambda: False)
    if row["extended_s"] is not None:
        changes = {"budget_s": row["extended_s"], "target": row["target"]}
        events |= pool.run([Job(spec, place, changes=changes)], lambda _: None, lambda: False)
    notes = [f"{event.kind}: {event.why}" for event in events.values() if event.kind != "done"]
    manifest = read_manifest(place) if not notes else {}
    now = {
        "data": hash_data(plan.task), "code": code, "version": fedbalancer.__version__,
        "processor": manifest.get("kernels", {}).get("processor", ""),
    }  # fmt: skip
    notes += [f"other {name}" for name, value in now.items() if value and value != row[name]]
    files = manifest.get("files", {})
    differing = tuple(name for name in FILES if row.get(_column(name)) != files.get(name))
    return Verdict(row["cell"], row["method"], row["seed"], not differing, differing, tuple(notes))


def _column(file: str) -> str:
    return f"sha256_{file.partition('.')[0]}"
