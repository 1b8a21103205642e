"""Methods x seeds on one task.

Every method gets, per seed, the simulated seconds that FedAvg+1T needs for the task's rounds, and by the fair rule is
evaluated on one grid of them. The target is the final accuracy of the best FedAvg variant. A method that has not
reached it within the budget runs on, up to `extend` times the budget, because its time-to-accuracy is wanted; its
final accuracy is the one within the budget all the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.files import LOCK, FolderLock
from fedbalancer.data import Task
from fedbalancer.experiments.display import comparison_display, is_wanted
from fedbalancer.experiments.events import goes_further
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.jobs import Job, JobEvent, JobPool, Listen
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.spec import RunOptions, RunSpec, check_options
from fedbalancer.experiments.surprises import absent_kernels, surprises_of_plan, warn
from fedbalancer.experiments.trust import code_of, remember
from fedbalancer.experiments.variants import named_in_full
from fedbalancer.methods.names import split_names
from fedbalancer.methods.table import Method
from fedbalancer.reporting import Comparison, RunCurve, score, write_report
from fedbalancer.reporting.results import load_run
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import COMPARISON, EvalRow, MemoryRecorder, check_free, read_status, schema_of
from fedbalancer.store.comparison import TARGETS
from fedbalancer.store.contents import MANIFEST, make_folder, refuse_links
from fedbalancer.training.model_check import check_accuracy

DEFAULT_METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", "fedbalancer",
)  # fmt: skip

SHARED_RESULTS = ".shared-results"
Key = tuple[str, int]
"""The method's name and the seed of a run."""


@dataclass(frozen=True)
class ComparisonRun:
    """A comparison that was run: its scores, its folder, and the last event of every run."""

    comparison: Comparison
    folder: Path | None
    outcomes: Mapping[Key, JobEvent]

    @property
    def failed(self) -> list[JobEvent]:
        return [event for event in self.outcomes.values() if event.kind == "failed"]

    @property
    def stopped(self) -> bool:
        return any(event.kind == "stopped" for event in self.outcomes.values())

    def scored(self) -> Comparison:
        """The scores; if there are none, an error that says why."""
        if not self.comparison.seeds:
            failures = [f"{event.key[0]} seed {event.key[1]} failed: {event.why}" for event in self.failed]
            raise FedBalancerError(f"nothing can be scored: {'; '.join(failures or self.comparison.notes)}")
        return self.comparison


def compare(
    task: str | Task,
    methods: str | Sequence[str | Method] = DEFAULT_METHODS,
    seeds: int | Sequence[int] = 3,
    *,
    extend: float = 2.0,
    rule: str = "fair",
    targets: Sequence[float] = TARGETS,
    out: Path | str | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    workers: int | None = None,
    executor: str | None = None,
    address: str | None = None,
    track: Sequence[Any] = (),
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Compare methods on a task and return the scores. Runs that fail are left out of them, and named in their `notes`;
    if nothing is left it is an error.

    `methods` are names, as a list or with commas between them, and methods of your own (`fedbalancer.method`). `seeds`
    are numbers, or how many of them to take from 0 on. A method may take `extend` budgets to reach the target.
    By the rule `fair` all methods are evaluated on one grid of simulated seconds and a target must be held; `paper` is
    the published rule, by rounds. `targets` are shares of the reference's final accuracy, the main one first.
    The folder `out` keeps every run and the report; without it nothing is written to disk. `jobs` runs go side by side,
    each with `workers` that train its clients on the `executor` (inline, pool, or ray at `address`); unless told, they
    share the cores. `track` names the sinks of every run, as for `run`. `progress` says on stderr how far all runs are
    and what time is left; unless told, in notebooks only. The further options are those of all runs, as
    `RunOptions` explains them.
    """
    check_options(options)
    names = split_names(methods) if isinstance(methods, str) else methods
    base, named = named_in_full(RunSpec(task=task, **options), names)
    plan = ComparisonPlan.make(base, named, seeds, extend, rule, targets)
    resources = Resources(workers=workers, executor=executor, address=address, track=tuple(track))
    folder = Path(out) if out is not None else None
    warn(surprises_of_plan(plan))
    with comparison_display(plan.method_names, plan.seeds, is_wanted(progress)) as listen:
        done = run_comparison(plan, folder, overwrite=overwrite, jobs=jobs, resources=resources, listen=listen)
    warn(absent_kernels(plan.base))
    return done.scored()


def run_comparison(
    plan: ComparisonPlan,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    resumed: bool = False,
    jobs: int | None = None,
    resources: Resources | None = None,
    listen: Listen = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ComparisonRun:
    """Run or go on with a comparison in the folder `out`, or run it in memory."""
    if out is not None and not resumed:
        check_free(out, overwrite, COMPARISON)
    side_by_side, each = (resources or Resources(workers=None)).divide(len(plan.specs), jobs)
    ExecutorCache(each).check(plan.base)
    check_accuracy(plan.task)
    with _alone_in(out, plan):
        if out is not None:
            if not resumed:
                check_free(out, overwrite, COMPARISON)  # again, now that we are alone
                remember(code_of(plan.base, plan.methods))
                _clear(out)
            plan.file.write(out)
        return _run(plan, out, side_by_side, each, overwrite, resumed, listen, stopped)


def _clear(out: Path) -> None:
    """Take the runs of an earlier comparison away: a table of all runs in the folder must not have those of methods
    that are not in it any more."""
    for manifest in out.glob(f"*/seed-*/{MANIFEST}"):
        seed = manifest.parent
        refuse_links(out, seed.parent.name)
        shutil.rmtree(seed)
        if not any(seed.parent.iterdir()):
            seed.parent.rmdir()


@contextmanager
def _alone_in(out: Path | None, plan: ComparisonPlan) -> Iterator[None]:
    """The folder of a comparison, made if need be, for this process alone; None is in memory."""
    if out is None:
        yield
        return
    make_folder(out)
    refuse_links(out, LOCK, SHARED_RESULTS, *plan.method_names)
    lock = FolderLock(out)
    try:
        yield
    finally:
        lock.release()


def _run(
    plan: ComparisonPlan,
    out: Path | None,
    side_by_side: int,
    each: Resources,
    overwrite: bool,
    resumed: bool,
    listen: Listen,
    stopped: Callable[[], bool],
) -> ComparisonRun:
    """The comparison itself: all runs to their budget, then those further that have not reached the target."""
    there = {spec.key for spec in plan.specs if resumed and out and read_status(run_folder(out, spec)) == "done"}
    for key in there:
        listen(JobEvent(key, "found"))
    first = [
        Job(spec, _place(out, spec), overwrite=overwrite and not resumed)
        for spec in interleave_by_seed(plan.specs, side_by_side)
        if spec.key not in there
    ]
    with shared_results(out) as results, JobPool(plan.own_task, side_by_side, replace(each, results=results)) as pool:
        outcomes = pool.run(first, listen, stopped)
        curves = {spec.key: _curve(out, spec, outcomes.get(spec.key)) for spec in plan.specs}
        further = [] if stopped() else _extensions(plan, out, curves, outcomes)
        for job in further:
            listen(goes_further(job.key, curves[job.key], plan.extend * plan.budgets_s[job.spec.seed]))
        outcomes |= pool.run(further, listen, stopped)
    outcomes = {spec.key: outcomes[spec.key] for spec in plan.specs if spec.key in outcomes}  # not as they finished
    if out is not None:
        comparison = write_report(out).comparison
        assert comparison is not None  # only a single run has no scores
        return ComparisonRun(comparison, out, outcomes)
    curves |= {key: event.curve for key, event in outcomes.items() if event.curve is not None}
    return ComparisonRun(_scored(plan, curves), None, outcomes)


def interleave_by_seed(specs: Sequence[RunSpec], side_by_side: int) -> list[RunSpec]:
    """The runs in an order in which those that go side by side are of different seeds, and runs of one seed follow each
    other: what these have in common is then there when the next one asks for it."""
    seeds = sorted({spec.seed for spec in specs})
    block = {seed: place // side_by_side for place, seed in enumerate(seeds)}
    methods = {name: place for place, name in enumerate(dict.fromkeys(spec.method_name for spec in specs))}
    return sorted(specs, key=lambda spec: (block[spec.seed], methods[spec.method_name], spec.seed))


@contextmanager
def shared_results(out: Path | None) -> Iterator[Path | None]:
    """A folder for what runs have in common, for as long as they go on; none where nothing is to touch the disk."""
    if out is None:
        yield None
        return
    folder = out / SHARED_RESULTS
    shutil.rmtree(folder, ignore_errors=True)  # what a killed one left may be of another version
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_folder(out: Path, spec: RunSpec) -> Path:
    """Where a comparison keeps one of its runs."""
    return out / spec.method_name / f"seed-{spec.seed}"


def _place(out: Path | None, spec: RunSpec) -> Path | MemoryRecorder:
    return MemoryRecorder() if out is None else run_folder(out, spec)


def _curve(out: Path | None, spec: RunSpec, event: JobEvent | None) -> RunCurve:
    """What is known of a run: by its last event, or else by its folder."""
    if event is not None and event.curve is not None:
        return event.curve
    if out is not None:
        return load_run(run_folder(out, spec), *spec.key).curve
    return RunCurve(*spec.key, pl.DataFrame(schema=schema_of(EvalRow)), "failed", 0.0)


def _extensions(
    plan: ComparisonPlan, out: Path | None, curves: Mapping[Key, RunCurve], outcomes: Mapping[Key, JobEvent]
) -> list[Job]:
    """Finished runs that did not reach the highest of their seed's targets within the budget, to be carried on."""
    if plan.extend <= 1:
        return []
    seeds = _scored(plan, curves).seeds
    highest = [(s, s.reaches[max(plan.targets)]) for seed in seeds for s in seed.scores]
    waiting = {(s.method, s.seed): reach.target for s, reach in highest if not reach.arrival.reached}
    jobs = []
    for spec in plan.specs:
        target = waiting.get(spec.key)
        if target is not None and curves[spec.key].status == "done":
            place = run_folder(out, spec) if out is not None else outcomes[spec.key].memory
            assert place is not None  # whoever ended in memory brought it along
            longer_s = plan.extend * plan.budgets_s[spec.seed]
            jobs.append(Job(spec, place, changes={"budget_s": longer_s, "target": target}))
    return jobs


def _scored(plan: ComparisonPlan, curves: Mapping[Key, RunCurve]) -> Comparison:
    return score(
        curves.values(), plan.budgets_s, methods=plan.method_names, task=plan.task.name, variant=plan.task.variant,
        rounds=plan.rounds, rule=plan.rule, targets=plan.targets,
    )  # fmt: skip
