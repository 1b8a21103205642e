"""Runs the benchmark: tunes and scores methods cell by cell, continues after a stop, and collects the results."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.files import FolderLock, readable, write_bytes, write_json
from fedbalancer.experiments.benchmark.scoring import Scoring, read_records
from fedbalancer.experiments.benchmark.suite import FEDAVG, Cell, Suite
from fedbalancer.experiments.benchmark.tuning import TUNED, Tuned, Tuning, read_tuned, write_tuned
from fedbalancer.experiments.comparison import shared_results
from fedbalancer.experiments.jobs import JobPool
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.experiments.sweep.search import Event
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.search_spaces import SearchSpace, space_of
from fedbalancer.methods.table import check_method_name
from fedbalancer.reporting.benchmark import PROTOCOL, RUNS, TRIALS
from fedbalancer.simulation.executors import Resources
from fedbalancer.store.contents import make_folder

GIFTS = "+batches+averaged[deadline=UsefulWork,aggregate=ExtrapolatedMomentum]"
"""The parts of canter that other methods can use: work in batches, deadline, server step and averaged model."""
DEFAULT_METHODS = (*FEDAVG, "prox+1t", "fedbuff", "oort", "fedbalancer", "canter")
Say = Callable[[str], None]


@dataclass
class Counter:
    """Counts the finished runs of a command and describes its progress.

    Args:
        total: Number of runs that are left, at most.
        say: Called with a line of text for every finished run.
        place: Description of the current cell, for the text.
        done: Number of finished runs.
    """

    total: int
    say: Say
    place: str = ""
    done: int = field(default=0, init=False)

    def trial(self, event: Event) -> None:
        """Handle the event of a trial."""
        if event.kind != "running":
            self._advance(f"tuning, {event.method}: {event.text}")

    def run(self, event: JobEvent) -> None:
        """Handle the event of a scored run."""
        if event.kind != "running":
            self._advance(f"{event.key[0]} seed {event.key[1]}: {event.kind}{f', {event.why}' if event.why else ''}")

    def _advance(self, text: str) -> None:
        self.done += 1
        self.say(f"{self.done} of {max(self.total, self.done)}, {self.place}, {text}")


def run_benchmark(
    suite: Suite,
    out: Path,
    *,
    cells: Sequence[str] = (),
    methods: Sequence[str] = DEFAULT_METHODS,
    gifts: bool = False,
    score: bool = True,
    jobs: int | None = None,
    results: Path | None = None,
    owner: str = "",
    spaces: Mapping[str, SearchSpace] = MappingProxyType({}),
    say: Say = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Tune and score methods on the cells of a suite. What is finished already is not run again.

    Args:
        suite: The suite.
        out: Folder of all runs.
        cells: Names of cells. Default: all whose data are on this computer.
        methods: Methods besides FedAvg's variants, which are always tuned: they set the target.
        gifts: Also score every method that supports them with canter's parts, untuned.
        score: Score the methods after tuning.
        jobs: Number of runs in parallel. Default: one per core.
        results: Folder to which results are added after each cell. Default: none.
        owner: Owner of the methods, for the table; "" for this project.
        spaces: Search spaces of methods that the table does not have.
        say: Called with a line of text about the progress.
        stopped: Checked several times per second; if it returns True, running runs save their state and stop.

    Returns:
        Whether everything is finished.

    Raises:
        BadSetting: If a method has no search space.
        MissingData: If the data of a cell are not on this computer.
    """
    chosen = [suite.cell(name) for name in cells] if cells else find_cells(suite, say)
    names = tuple(dict.fromkeys(canonical_name(name) for name in methods))
    for name in names:
        check_method_name(name)
        if name not in spaces:
            space_of(name)
    make_folder(out)
    lock = FolderLock(out)
    try:
        counter = Counter(_count(suite, out, chosen, names, score=score), say)
        complete = True
        for cell in chosen:
            counter.place = cell.name
            complete &= _run_cell(suite, cell, out / cell.name, names, gifts, score, jobs, counter, stopped, spaces)
            if results is not None:
                collect(suite, out, results, owner)
            if stopped():
                return False
        return complete
    finally:
        lock.release()


def find_cells(suite: Suite, say: Say = lambda _: None) -> list[Cell]:
    """Return the cells of a suite whose data are on this computer.

    Args:
        suite: The suite.
        say: Called with a line of text for every other cell.

    Raises:
        MissingData: If there are none.
    """
    missing = {cell.name: cell.why_missing() for cell in suite.cells}
    for name, why in missing.items():
        if why:
            say(f"{name} is left out: {why}")
    if all(missing.values()):
        raise MissingData(next(iter(missing.values())))
    return [cell for cell in suite.cells if not missing[cell.name]]


def _run_cell(
    suite: Suite,
    cell: Cell,
    out: Path,
    methods: Sequence[str],
    gifts: bool,
    score: bool,
    jobs: int | None,
    counter: Counter,
    stopped: Callable[[], bool],
    spaces: Mapping[str, SearchSpace],
) -> bool:
    make_folder(out)
    parallel, each = Resources(workers=1).divide(len(methods) * suite.trials, jobs)
    with shared_results(out) as shared, JobPool(None, parallel, replace(each, results=shared)) as pool:
        tuned = read_tuned(out / TUNED)
        if any(not is_tuned(suite, tuned, method) for method in (*FEDAVG, *methods)):
            tuning = Tuning(suite, cell, out, pool, counter.trial, stopped, spaces)
            for method, result in tuning.tune(methods):
                tuned[method] = result
                write_tuned(out / TUNED, {method: result})
        if any(not is_tuned(suite, tuned, method) for method in (*FEDAVG, *methods)):
            return False
        if not score:
            return True
        reference = [tuned[method].chosen for method in FEDAVG]
        names = [name for method in (*FEDAVG, *methods) for name in (method, tuned[method].chosen)]
        names += [with_gifts(method) for method in gifted(methods)] if gifts else []
        return Scoring(suite, cell, out, pool, counter.run, stopped).run(names, reference, suite.seeds)


def is_tuned(suite: Suite, tuned: Mapping[str, Tuned], method: str) -> bool:
    """Return whether a method has all trials, on the suite's tuning seeds and towards the present targets.

    Args:
        suite: The suite.
        tuned: The tuned methods of a cell. FedAvg's variants set the targets.
        method: The method.
    """
    mine, reference = tuned.get(method), tuned.get(FEDAVG[0])
    if mine is None or reference is None or len(mine.trials) < suite.trials:
        return False
    return mine.targets == reference.targets and mine.targets.keys() == set(suite.tuning_seeds)


def _count(suite: Suite, out: Path, cells: Iterable[Cell], methods: Sequence[str], *, score: bool) -> int:
    """Return how many trials and scored runs are left at most."""
    names, total = tuple(dict.fromkeys((*FEDAVG, *methods))), 0
    for cell in cells:
        tuned = read_tuned(out / cell.name / TUNED)
        total += suite.trials * sum(not is_tuned(suite, tuned, name) for name in names)
        if score:
            finished = {(row["method"], row["seed"]) for row in read_records(out / cell.name)}
            wanted = {(n, seed) for name in names for seed in suite.seeds for n in (name, _chosen(tuned, name))}
            total += len(wanted - finished)
    return total


def _chosen(tuned: Mapping[str, Tuned], method: str) -> str:
    return tuned[method].chosen if method in tuned else f"{method} (tuned)"


def with_gifts(method: str) -> str:
    """Return a method with canter's parts that any method could have.

    Args:
        method: A base without brackets.

    Raises:
        BadSetting: If the method does not support them.

    >>> with_gifts("oort")
    'oort+batches+averaged[deadline=UsefulWork,aggregate=ExtrapolatedMomentum]'
    """
    base = method.partition("+")[0] if method in FEDAVG or method.startswith("prox+") else method
    name = canonical_name(base + GIFTS)
    check_method_name(name)
    return name


def gifted(methods: Iterable[str]) -> list[str]:
    """Return the methods that support canter's parts, except canter itself.

    FedAvg's variants differ in the deadline only, so one of them stands for all; so does one of Prox.

    Args:
        methods: The methods.
    """
    carriers: dict[str, str] = {}
    for method in (FEDAVG[0], *methods):
        if method.startswith("canter") or "[" in method:
            continue
        try:
            carriers.setdefault(with_gifts(method), method)
        except BadSetting:
            continue
    return list(carriers.values())


def collect(suite: Suite, out: Path, results: Path, owner: str = "") -> None:
    """Add the finished runs and trials of a folder to the results.

    Args:
        suite: The suite.
        out: Folder of all runs.
        results: Folder of the results. Rows of other runs stay.
        owner: Owner of the methods; "" for this project.
    """
    runs: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    for cell in suite.cells:
        runs += [_row(record, owner) for record in read_records(out / cell.name)]
        for tuned in read_tuned(out / cell.name / TUNED).values():
            trials += [
                {"suite": suite.name, "cell": cell.name, "method": tuned.method, "owner": owner,
                 "number": trial["number"], "trial": trial["method"], "state": trial["state"],
                 "value": trial["value"], "values": trial["values"], "chosen": trial["method"] == tuned.chosen}
                for trial in tuned.trials
            ]  # fmt: skip
    make_folder(results)
    _merge(results / RUNS, runs, ("suite", "cell", "method", "seed", "owner"))
    _merge(results / TRIALS, trials, ("suite", "cell", "method", "number", "owner"))
    protocol = {
        "suite": suite.name, "digest": suite.digest, "trials": suite.trials, "tuning_seeds": suite.tuning_seeds,
        "seeds": suite.seeds, "extend": suite.extend, "targets": suite.targets, "gifts": GIFTS,
        "cells": [{"name": cell.name, "task": cell.task, "title": cell.title} for cell in suite.cells],
    }  # fmt: skip
    if not owner or not (results / PROTOCOL).is_file():
        write_json(results / PROTOCOL, readable(protocol))


def _row(record: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the row of a record: lists of numbers as 32 bits, mappings as text columns."""
    kernels = record.get("kernels") or {}
    row = {key: value for key, value in record.items() if key not in ("final_run", "kernels", "files", "extension")}
    extension = record.get("extension") or {}
    files = record.get("files") or {}
    return {
        **row, "owner": owner, "processor": kernels.get("processor", ""), "target": extension.get("target"),
        "extended_s": extension.get("budget_s"),
        **{f"sha256_{name.partition('.')[0]}": files.get(name) for name in files},
    }  # fmt: skip


LISTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
"""Columns of costs along the grid, which have 32 bits."""


def _merge(file: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    """Write rows to a Parquet file, besides the rows that it has with other keys."""
    if not rows:
        return
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    frame = frame.with_columns(pl.col(name).cast(pl.List(pl.Float32)) for name in LISTS if name in frame.columns)
    if file.is_file():
        before = pl.read_parquet(file)
        frame = pl.concat(
            [before.join(frame, on=list(key), how="anti", nulls_equal=True), frame], how="diagonal_relaxed"
        )
    buffer = io.BytesIO()
    frame.sort(list(key)).write_parquet(buffer, compression="zstd")
    write_bytes(file, buffer.getvalue())
