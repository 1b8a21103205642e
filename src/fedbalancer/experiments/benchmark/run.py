"""Runs the benchmark: tunes and scores methods cell by cell, and continues after a stop, also from results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.files import FolderLock
from fedbalancer.experiments.benchmark.results import collect, restore
from fedbalancer.experiments.benchmark.scoring import Scoring, read_records
from fedbalancer.experiments.benchmark.suite import FEDAVG, GIFTS, Cell, Suite
from fedbalancer.experiments.benchmark.tuning import TUNED, Tuned, Tuning, is_tuned, read_tuned, write_tuned
from fedbalancer.experiments.comparison import shared_results
from fedbalancer.experiments.jobs import JobPool
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.experiments.sweep.search import Event
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.search_spaces import SearchSpace, space_of
from fedbalancer.methods.table import check_method_name
from fedbalancer.simulation.executors import Resources
from fedbalancer.store.contents import make_folder

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
    untuned: Sequence[str] = (),
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
        untuned: Full names of methods that are scored without tuning, for example parts of a method.
        score: Score the methods after tuning.
        jobs: Number of runs in parallel. Default: one per core.
        results: Folder to which results are added after each cell. Trials and runs that it has are not run again, even
            if `out` is empty. Default: none.
        owner: Owner of the methods, for the table; "" for this project.
        spaces: Search spaces of methods that the table does not have.
        say: Called with a line of text about the progress.
        stopped: Checked several times per second; if it returns True, running runs save their state and stop.

    Returns:
        Whether everything is finished.

    Raises:
        BadSetting: If a method has no search space, or its name is wrong.
        UnknownName: If a method does not exist.
        MissingData: If the data of a cell are not on this computer.
    """
    chosen = [suite.cell(name) for name in cells] if cells else find_cells(suite, say)
    names, untuned = _check_names(methods), _check_names(untuned)
    for name in names:
        if name not in spaces:
            space_of(name)
    added = (*(with_gifts(name) for name in gifted(names)), *untuned) if gifts else untuned
    make_folder(out)
    lock = FolderLock(out)
    try:
        if results is not None:
            for cell in chosen:
                restore(cell, suite, results, out / cell.name, owner)
        counter = Counter(_count(suite, out, chosen, names, added, score=score), say)
        complete = True
        for cell in chosen:
            counter.place = cell.name
            complete &= _run_cell(suite, cell, out / cell.name, names, added, score, jobs, counter, stopped, spaces)
            if results is not None:
                collect(suite, out, results, owner, untuned)
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
    added: Sequence[str],
    score: bool,
    jobs: int | None,
    counter: Counter,
    stopped: Callable[[], bool],
    spaces: Mapping[str, SearchSpace],
) -> bool:
    """Tune and score the methods of a cell, and score the added methods without tuning."""
    make_folder(out)
    runs = max(len(methods) * suite.trials, len(FEDAVG) + len(added))
    parallel, each = Resources(workers=1).divide(runs, jobs)
    with shared_results(out) as shared, JobPool(None, parallel, replace(each, results=shared)) as pool:
        tuned = read_tuned(out / TUNED)
        if any(not is_tuned(suite, tuned, method) for method in (*FEDAVG, *methods)):
            tuning = Tuning(suite, cell, out, pool, counter.trial, stopped, spaces)
            for method, result in tuning.tune(methods, tuned):
                tuned[method] = result
                write_tuned(out / TUNED, {method: result})
        if any(not is_tuned(suite, tuned, method) for method in (*FEDAVG, *methods)):
            return False
        if not score:
            return True
        reference = [tuned[method].chosen for method in FEDAVG]
        names = [name for method in (*FEDAVG, *methods) for name in (method, tuned[method].chosen)]
        return Scoring(suite, cell, out, pool, counter.run, stopped).run([*names, *added], reference, suite.seeds)


def _check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the canonical names of methods, each once."""
    canonical = tuple(dict.fromkeys(canonical_name(name) for name in names))
    for name in canonical:
        check_method_name(name)
    return canonical


def _count(
    suite: Suite, out: Path, cells: Iterable[Cell], methods: Sequence[str], added: Sequence[str], *, score: bool
) -> int:
    """Return how many trials and scored runs are left at most."""
    names, total = tuple(dict.fromkeys((*FEDAVG, *methods))), 0
    for cell in cells:
        tuned = read_tuned(out / cell.name / TUNED)
        total += suite.trials * sum(not is_tuned(suite, tuned, name) for name in names)
        if score:
            finished = {(row["method"], row["seed"]) for row in read_records(out / cell.name)}
            wanted = {(n, seed) for name in names for seed in suite.seeds for n in (name, _chosen(tuned, name))}
            wanted |= {(name, seed) for name in added for seed in suite.seeds}
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
