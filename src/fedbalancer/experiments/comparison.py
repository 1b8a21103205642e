"""Comparisons of methods on one task, over seeds.

The budget of every method is, per seed, the simulated time that FedAvg+1T needs for the task's rounds. By the fair rule
all methods are evaluated on one grid of simulated seconds. The target is the final accuracy of the best FedAvg variant.
A method that does not reach the target within the budget continues, up to `extend` times the budget, to measure its
time-to-accuracy. Its final accuracy is the one at the end of the budget.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import LOCK, FolderLock
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.merging import plan_addition
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import (
    ComparisonRun,
    JobEvent,
    Key,
    Listen,
    Observer,
    comparison_display,
    extension_event,
    shows_progress,
)
from fedbalancer.experiments.run_warnings import missing_kernels, warnings_for_comparison
from fedbalancer.experiments.spec import RunOptions, RunSpec, move_policies_into_names, split_options
from fedbalancer.experiments.trust import code_of, remember
from fedbalancer.methods.names import split_names
from fedbalancer.methods.table import Method
from fedbalancer.reporting import Comparison, RunCurve, score, write_report
from fedbalancer.reporting.results import load_run
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import COMPARISON, ComparisonFile, EvalRow, MemoryRecorder, check_free, read_status, schema_of
from fedbalancer.store.comparison import TARGETS
from fedbalancer.store.contents import MANIFEST, make_folder, refuse_links
from fedbalancer.training.model_check import check_accuracy

DEFAULT_METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", "fedbalancer",
)  # fmt: skip

SHARED_RESULTS = ".shared-results"


def compare(
    task: str | Task | None = None,
    methods: str | Sequence[str | Method] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    extend: float | None = None,
    rule: str | None = None,
    targets: Sequence[float] | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    add: Path | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    stopped: Callable[[], bool] = lambda: False,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Compare methods on a task by time-to-accuracy and final accuracy.

    Runs that fail are left out of the scores and listed in their `notes`.

    Args:
        task: A task's name, a TOML file, `package.module:function`, or a `Task`.
        methods: Method names, as a list or separated by commas, and `Method` objects. Default: FedBalancer and the
            paper's baselines.
        seeds: Number of seeds, starting at 0, or the seeds themselves. Default: 3.
        extend: Maximum number of budgets that a method may take to reach the target. Default: 2.
        rule: fair (default: all methods are evaluated on one grid of simulated seconds and must hold a target) or paper
            (the published rule: a target counts when an evaluation after a round first reaches it).
        targets: Targets as shares of the reference's final accuracy (or other `target_metric`), the main one first. If
            lower values are better, the target is the final value divided by the share. Default: 1, 0.95 and 0.9.
        out: Folder for all runs and the report. Default: nothing is written to disk.
        overwrite: Replace a comparison that exists in the folder.
        add: Folder of a comparison to which these methods and seeds are added. Only the runs that are missing are run.
            Everything else is the folder's; an option that differs is an error.
        jobs: Number of runs in parallel. Default: as many as the cores and `workers` allow.
        progress: Show progress and the remaining time on stderr. Default: in notebooks only.
        observer: Receives the loaded task, warnings and how each run ended. Default: Python warnings.
        stopped: Checked several times per second; if it returns True, all runs save their state and stop.
        **options: Options of all runs, see `RunOptions` and `ExecutionOptions`.

    Returns:
        The scores of all methods.

    Raises:
        FedBalancerError: If an option, the task or the folder is invalid, or nothing can be scored.

    >>> import fedbalancer as fb
    >>> table = fb.compare("synthetic", ["fedavg+1t", "prox+1t"], seeds=1, users=8, rounds=2, extend=1, jobs=1)
    >>> [score.method for score in table.methods]
    ['fedavg+1t', 'prox+1t']
    """
    observer = observer if observer is not None else Observer()
    spec_options, execution = split_options(options)
    names = split_names(methods) if isinstance(methods, str) else methods
    folder = Path(out) if out is not None else None
    before: ComparisonFile | None = None
    begun_s = time.perf_counter()
    if add is not None:
        if folder is not None or overwrite:
            raise BadSetting("add names the folder that grows; it does not allow out or overwrite")
        folder, before = Path(add), ComparisonFile.read(Path(add))
        further = before.seeds if seeds is None else seeds
        rules = {"extend": extend, "rule": rule, "targets": targets}
        plan = plan_addition(folder, before, task, names or (), further, spec_options, rules)
    else:
        plan = _plan_new(task, names, seeds, spec_options, extend=extend, rule=rule, targets=targets)
    seconds = time.perf_counter() - begun_s
    resources = Resources(**{"workers": None, **execution, "track": tuple(execution.get("track", ()))})
    warnings = warnings_for_comparison(plan)
    observer.on_task(plan.task, seconds)
    observer.on_warnings(warnings)
    with comparison_display(plan.method_names, plan.seeds, shows_progress(progress)) as listen:
        outcome = run_comparison(
            plan, folder, overwrite=overwrite, resumed=add is not None, before=before, jobs=jobs, resources=resources,
            listen=listen, stopped=stopped,
        )  # fmt: skip
    observer.on_warnings(missing_kernels(plan.base))
    observer.on_comparison(outcome)
    return outcome.scores_or_error()


def _plan_new(
    task: str | Task | None,
    methods: Sequence[str | Method] | None,
    seeds: int | Sequence[int] | None,
    options: Mapping[str, Any],
    *,
    extend: float | None,
    rule: str | None,
    targets: Sequence[float] | None,
) -> ComparisonPlan:
    """Plan a new comparison; None stands for a default."""
    if task is None:
        raise BadSetting("a comparison needs a task, or a folder to add to")
    base, named = move_policies_into_names(
        RunSpec(task=task, **options), DEFAULT_METHODS if methods is None else methods
    )
    return ComparisonPlan.make(
        base, named, 3 if seeds is None else seeds, 2.0 if extend is None else extend, rule or "fair",
        TARGETS if targets is None else targets,
    )  # fmt: skip


def run_comparison(
    plan: ComparisonPlan,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    resumed: bool = False,
    before: ComparisonFile | None = None,
    jobs: int | None = None,
    resources: Resources | None = None,
    listen: Listen = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ComparisonRun:
    """Run or continue a planned comparison.

    Args:
        plan: The comparison.
        out: Its folder; None keeps it in memory.
        overwrite: Replace a comparison that exists in the folder.
        resumed: Continue the comparison in the folder.
        before: The plan in the folder from which this one was made. It must still be there.
        jobs: Number of runs in parallel. Default: as many as the cores and workers allow.
        resources: What the runs may use.
        listen: Called for every event of a run.
        stopped: Checked several times per second; if it returns True, all runs save their state and stop.
    """
    if out is not None and not resumed:
        check_free(out, overwrite, COMPARISON)
    parallel, each = (resources or Resources(workers=None)).divide(len(plan.specs), jobs)
    ExecutorCache(each).check(plan.base)
    check_accuracy(plan.task, plan.metric)
    with _lock_folder(out, plan):
        if out is not None:
            if not resumed:
                check_free(out, overwrite, COMPARISON)  # again, under the lock
                remember(code_of(plan.base, plan.methods))
                _clear(out)
            if before is not None and ComparisonFile.read(out) != before:  # now under the lock
                raise RunFolderError(f"{out} was changed by another process in the meantime; run the command again")
            plan.file.write(out)
        return _run(plan, out, parallel, each, overwrite, resumed, listen, stopped)


def _clear(out: Path) -> None:
    """Delete the runs of an earlier comparison, so that no table of the folder includes methods of that one."""
    for manifest in out.glob(f"*/seed-*/{MANIFEST}"):
        seed = manifest.parent
        refuse_links(out, seed.parent.name)
        shutil.rmtree(seed)
        if not any(seed.parent.iterdir()):
            seed.parent.rmdir()


@contextmanager
def _lock_folder(out: Path | None, plan: ComparisonPlan) -> Iterator[None]:
    """Create the folder of a comparison, if needed, and lock it for this process."""
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
    parallel: int,
    each: Resources,
    overwrite: bool,
    resumed: bool,
    listen: Listen,
    stopped: Callable[[], bool],
) -> ComparisonRun:
    """Run all methods to their budget, then extend the runs that have not reached the target."""
    finished = {spec.key for spec in plan.specs if resumed and out and read_status(run_folder(out, spec)) == "done"}
    for key in finished:
        listen(JobEvent(key, "found"))
    first = [
        Job(spec, _place(out, spec), overwrite=overwrite and not resumed)
        for spec in interleave_by_seed(plan.specs, parallel)
        if spec.key not in finished
    ]
    with shared_results(out) as results, JobPool(plan.own_task, parallel, replace(each, results=results)) as pool:
        outcomes = pool.run(first, listen, stopped)
        curves = {spec.key: _curve(out, spec, outcomes.get(spec.key)) for spec in plan.specs}
        further = [] if stopped() else _extensions(plan, out, curves, outcomes)
        for job in further:
            listen(extension_event(job.key, curves[job.key], plan.extend * plan.budgets_s[job.spec.seed]))
        outcomes |= pool.run(further, listen, stopped)
    outcomes = {spec.key: outcomes[spec.key] for spec in plan.specs if spec.key in outcomes}  # in the order of the plan
    if out is not None:
        comparison = write_report(out).comparison
        assert comparison is not None  # only a single run has no scores
        return ComparisonRun(comparison, out, outcomes)
    curves |= {key: event.curve for key, event in outcomes.items() if event.curve is not None}
    return ComparisonRun(_score(plan, curves), None, outcomes)


def interleave_by_seed(specs: Sequence[RunSpec], parallel: int) -> list[RunSpec]:
    """Order runs so that parallel runs have different seeds and runs of one seed follow each other.

    Runs of one seed share intermediate results, which then exist when the next run needs them.

    Args:
        specs: The runs.
        parallel: Number of runs in parallel.
    """
    seeds = sorted({spec.seed for spec in specs})
    block = {seed: index // parallel for index, seed in enumerate(seeds)}
    methods = {name: index for index, name in enumerate(dict.fromkeys(spec.method_name for spec in specs))}
    return sorted(specs, key=lambda spec: (block[spec.seed], methods[spec.method_name], spec.seed))


@contextmanager
def shared_results(out: Path | None) -> Iterator[Path | None]:
    """Provide a temporary folder for results that runs share; None for a comparison in memory."""
    if out is None:
        yield None
        return
    folder = out / SHARED_RESULTS
    shutil.rmtree(folder, ignore_errors=True)  # a killed comparison may have left results of another version
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_folder(out: Path, spec: RunSpec) -> Path:
    """Return the folder of one of a comparison's runs.

    Args:
        out: The folder of the comparison.
        spec: The run.
    """
    return out / spec.method_name / f"seed-{spec.seed}"


def _place(out: Path | None, spec: RunSpec) -> Path | MemoryRecorder:
    return MemoryRecorder() if out is None else run_folder(out, spec)


def _curve(out: Path | None, spec: RunSpec, event: JobEvent | None) -> RunCurve:
    """Return the evaluations of a run, from its last event or from its folder."""
    if event is not None and event.curve is not None:
        return event.curve
    if out is not None:
        return load_run(run_folder(out, spec), *spec.key).curve
    return RunCurve(*spec.key, pl.DataFrame(schema=schema_of(EvalRow)), "failed", 0.0)


def _extensions(
    plan: ComparisonPlan, out: Path | None, curves: Mapping[Key, RunCurve], outcomes: Mapping[Key, JobEvent]
) -> list[Job]:
    """Return jobs that extend the finished runs which did not reach their seed's highest target within the budget."""
    if plan.extend <= 1:
        return []
    seeds = _score(plan, curves).seeds
    highest = [(s, s.reaches[max(plan.targets)]) for seed in seeds for s in seed.scores]
    waiting = {(s.method, s.seed): reach.target for s, reach in highest if not reach.arrival.reached}
    jobs = []
    for spec in plan.specs:
        target, longer_s = waiting.get(spec.key), plan.extend * plan.budgets_s[spec.seed]
        if target is not None and curves[spec.key].status == "done" and curves[spec.key].last_s < longer_s:
            place = run_folder(out, spec) if out is not None else outcomes[spec.key].memory
            assert place is not None  # a run that ended in memory returns its record
            jobs.append(Job(spec, place, changes={"budget_s": longer_s, "target": target}))
    return jobs


def _score(plan: ComparisonPlan, curves: Mapping[Key, RunCurve]) -> Comparison:
    return score(
        curves.values(), plan.budgets_s, methods=plan.method_names, task=plan.task.name, variant=plan.task.variant,
        rounds=plan.rounds, rule=plan.rule, targets=plan.targets, metric=plan.metric.plain,
    )  # fmt: skip
