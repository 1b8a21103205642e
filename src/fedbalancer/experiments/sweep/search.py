"""Runs a sweep: optuna proposes trials, the job pool runs them, and the folder keeps the results."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedbalancer.core.errors import FedBalancerError, MissingData, RunFolderError
from fedbalancer.core.files import LOCK, FolderLock, readable, write_json
from fedbalancer.core.processes import DIED
from fedbalancer.experiments.comparison import SHARED_RESULTS, shared_results
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import BUDGET_METHOD
from fedbalancer.experiments.progress import JobEvent, Progress
from fedbalancer.experiments.sweep.objective import Reference, reference, time_ratio, value_at_budget
from fedbalancer.experiments.sweep.plan import POINT, SweepPlan, run_folder
from fedbalancer.experiments.sweep.results import Sweep, write_results
from fedbalancer.reporting import RunCurve
from fedbalancer.simulation.executors import Resources
from fedbalancer.store.contents import make_folder, refuse_links

if TYPE_CHECKING:
    import optuna

FILE = "sweep.json"
STORAGE = "study.db"
STUDY = "fedbalancer"
STEPS = 20
"""Number of times per budget that a trial is compared with the others."""
WARM_UP = 5
"""Number of trials, and of steps within a trial, before pruning starts."""
LIST_WARM_UP = 2
"""Number of trials before pruning starts in a sweep over a list of methods."""
REFERENCE = -1
"""The number of FedAvg+1T's runs in events; they are not a trial."""


@dataclass(frozen=True)
class Event:
    """A change in the state of a trial.

    Args:
        number: The number of the trial; -1 for the runs of FedAvg+1T that set the target.
        method: The method of the trial.
        kind: running, done, failed, stopped or pruned.
        share: Finished share of the trial, from 0 to 1.
        text: A description for people.
    """

    number: int
    method: str
    kind: str
    share: float = 0.0
    text: str = ""


Listen = Callable[[Event], None]


def run_sweep(
    plan: SweepPlan,
    out: Path,
    *,
    jobs: int | None = None,
    prune: bool = True,
    overwrite: bool = False,
    listen: Listen = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Sweep:
    """Run or continue a sweep, and write its table and figure.

    Args:
        plan: The sweep.
        out: Its folder. A sweep in it continues if it has the same plan.
        jobs: Number of parallel runs. Default: one per core.
        prune: Stop trials whose metric is worse than the median of the others.
        overwrite: Replace a sweep that exists in the folder.
        listen: Called for every event.
        stopped: Checked several times per second; if it returns True, the sweep saves its state and stops.

    Returns:
        All trials that were started.

    Raises:
        RunFolderError: If the folder holds something else.
    """
    import_optuna()
    parallel, each = Resources(workers=1).divide(max(plan.trials, len(plan.seeds)), jobs)
    make_folder(out)
    refuse_links(out, LOCK, STORAGE, SHARED_RESULTS, "runs", "figures")
    lock = FolderLock(out)
    try:
        _claim(plan, out, overwrite)
        study = open_study(plan, out, prune=prune)
        with (
            shared_results(out) as results,
            JobPool(plan.comparison.own_task, parallel, replace(each, results=results)) as pool,
        ):
            Search(plan, out, study, pool, listen, stopped).run()
        return write_results(plan, study, out, stopped())
    finally:
        lock.release()


def _claim(plan: SweepPlan, out: Path, overwrite: bool) -> None:
    """Write sweep.json, or check that the one in the folder describes the same sweep."""
    file = out / FILE
    if overwrite and file.is_file():
        for name in ("runs", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (FILE, STORAGE, "trials.parquet", "table.md"):
            (out / name).unlink(missing_ok=True)
    ours = readable(plan.to_json())
    if file.is_file():
        try:
            existing = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunFolderError(f"{file} is not JSON: {error}") from error
        if existing != ours:
            differing = [key for key in ours if not isinstance(existing, dict) or existing.get(key) != ours[key]]
            raise RunFolderError(
                f"{out} holds a sweep with a different {', '.join(differing)}; use another --out, or --overwrite"
            )
    elif any(path.name != ".lock" for path in out.iterdir()):
        raise RunFolderError(f"{out} is not empty and holds no sweep; use another --out")
    write_json(file, ours)


def import_optuna() -> Any:
    """Return the optuna module.

    Raises:
        MissingData: If optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise MissingData("a sweep needs optuna: pip install 'fedbalancer[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(plan: SweepPlan, out: Path, *, prune: bool = True) -> optuna.Study:
    """Open the optuna study in a sweep's folder, and queue the trials that an earlier command did not finish.

    The caller holds the folder's lock, so no other process runs a trial of this study.

    Args:
        plan: The sweep.
        out: Its folder.
        prune: Whether to prune trials.

    Raises:
        RunFolderError: If the database cannot be read.
    """
    package = import_optuna()
    try:
        study = package.create_study(
            storage=f"sqlite:///{(out / STORAGE).absolute()}",
            study_name=STUDY,
            direction="minimize" if plan.is_minimised else "maximize",
            sampler=_sampler(plan, package),
            pruner=_pruner(plan, package) if prune else package.pruners.NopPruner(),
            load_if_exists=True,
        )
    except Exception as error:  # the database raises errors of many types
        raise RunFolderError(
            f"{out / STORAGE} is not the storage of a sweep: {' '.join(str(error).split())}"
        ) from error
    _requeue_unfinished(study, package)
    study.sampler = _sampler(plan, package, len(study.trials))  # otherwise every command draws the same numbers
    if plan.methods:
        _queue(study, [{POINT: number} for number in range(len(plan.methods))])
    elif plan.sampler == "grid":
        _queue(study, _grid(plan))
    return cast("optuna.Study", study)


def count_finished(study: optuna.Study) -> int:
    """Return the number of trials that are complete, pruned or failed."""
    states = import_optuna().trial.TrialState
    ended = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))
    failed = study.get_trials(deepcopy=False, states=(states.FAIL,))
    return len(ended) + len([trial for trial in failed if "why" in trial.user_attrs])


def _sampler(plan: SweepPlan, optuna: Any, seed: int = 0) -> Any:
    if plan.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _requeue_unfinished(study: optuna.Study, optuna: Any) -> None:
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def _pruner(plan: SweepPlan, optuna: Any) -> Any:
    """Return the pruner. A short list of methods has no trials to spare for a long warm-up."""
    return optuna.pruners.MedianPruner(LIST_WARM_UP if plan.methods else WARM_UP, WARM_UP)


def _grid(plan: SweepPlan) -> list[dict[str, Any]]:
    """Return the points of the grid, at most `plan.trials`, in a fixed order."""
    points = plan.space.grid()
    random.Random(0).shuffle(points)
    return points[: plan.trials]


def _queue(study: optuna.Study, points: Sequence[Mapping[str, Any]]) -> None:
    """Queue the points that the study does not have."""
    existing = [trial.params or trial.system_attrs.get("fixed_params") for trial in study.get_trials(deepcopy=False)]
    for point in points:
        if point not in existing:
            study.enqueue_trial(dict(point))


@dataclass
class _RunningTrial:
    trial: Any
    method: str
    curves: list[RunCurve] = field(default_factory=list)
    step: int = 0
    is_pruned: bool = False


class Search:
    """Asks optuna for trials, runs them in the job pool, and reports the results to optuna.

    The seeds of a trial run one after the other.

    Args:
        plan: The sweep.
        out: Its folder.
        study: The optuna study.
        pool: The processes that run the trials.
        listen: Called for every event.
        stopped: Returns True if the sweep should stop.
    """

    def __init__(
        self,
        plan: SweepPlan,
        out: Path,
        study: optuna.Study,
        pool: JobPool,
        listen: Listen,
        stopped: Callable[[], bool],
    ) -> None:
        self.plan, self.out, self.study, self.pool = plan, out, study, pool
        self.listen, self.stopped = listen, stopped
        self.references: dict[int, Reference] = {}
        self._running: dict[str, _RunningTrial] = {}
        self._delayed: list[_RunningTrial] = []

    def run(self) -> None:
        """Run all trials that are left."""
        if self.plan.is_time and not self._run_references():
            return
        begun = count_finished(self.study)
        while True:
            while self.pool.has_room and not self._delayed and begun < self.plan.trials and not self.stopped():
                begun += 1
                self._start(self._ask())
            if not self._running:
                return
            if self.stopped():
                self.pool.stop_all()
            for event in self.pool.wait():
                self._handle(event)

    def _run_references(self) -> bool:
        """Run FedAvg+1T on every seed, which sets the targets. Returns False if it was stopped."""
        if self.plan.targets:
            budgets_s = self.plan.budgets_s
            self.references = {seed: Reference(value, budgets_s[seed]) for seed, value in self.plan.targets.items()}
            return True
        jobs = [self._job(BUDGET_METHOD, seed) for seed in self.plan.seeds]

        def listen(event: JobEvent) -> None:
            if event.progress is not None:
                now = event.progress
                self.listen(Event(REFERENCE, BUDGET_METHOD, "running", now.share, _progress_text(now)))

        for (_, seed), event in self.pool.run(jobs, listen, self.stopped).items():
            if event.kind == "failed":
                raise FedBalancerError(f"{BUDGET_METHOD} seed {seed}, which sets the target, failed: {event.why}")
            if event.kind == "done" and event.curve is not None:
                result = reference(event.curve, self.plan.budgets_s[seed], self.plan.share)
                if result is None:
                    title = self.plan.metric.title
                    raise FedBalancerError(f"{BUDGET_METHOD} seed {seed} has no {title} from which to set a target")
                self.references[seed] = result
        return len(self.references) == len(self.plan.seeds)

    def _job(self, method: str, seed: int) -> Job:
        target = self.references[seed].target if seed in self.references else None
        return Job(self.plan.spec(method, seed, target), run_folder(self.out, method, seed))

    def _ask(self) -> _RunningTrial:
        trial = self.study.ask()
        method = self.plan.draw(trial)
        trial.set_user_attr("method", method)
        return _RunningTrial(trial, method)

    def _start(self, trial: _RunningTrial) -> None:
        """Start a trial. If its method is running already, it waits for that and then uses the same runs."""
        if trial.method in self._running:
            self._delayed.append(trial)
            return
        self._running[trial.method] = trial
        self.pool.submit(self._job(trial.method, self.plan.seeds[0]))

    def _handle(self, event: JobEvent) -> None:
        trial = self._running[event.key[0]]
        if event.kind == "running":
            assert event.progress is not None
            self._report(trial, event.key, event.progress)
            return
        if event.why == DIED:
            raise FedBalancerError(f"{DIED}; run the same command again to continue this sweep")
        if event.kind == "done":
            assert event.curve is not None
            trial.curves.append(event.curve)
            if len(trial.curves) < len(self.plan.seeds) and not trial.is_pruned and not self.stopped():
                self.pool.submit(self._job(trial.method, self.plan.seeds[len(trial.curves)]))
                return
        self._finish(trial, event)

    def _report(self, trial: _RunningTrial, key: tuple[str, int], now: Progress) -> None:
        """Report the metric of a trial to optuna, and stop the trial if optuna prunes it."""
        share = (len(trial.curves) + now.share) / len(self.plan.seeds)
        self.listen(Event(trial.trial.number, trial.method, "running", share, _progress_text(now)))
        step = int(STEPS * now.share)
        if trial.curves or now.value is None or step <= trial.step:
            return  # only the first seed is compared: values of other seeds differ at the same time
        trial.step = step
        level = self.plan.metric.sign * now.value
        trial.trial.report(1 - level if self.plan.is_minimised else level, step)
        if trial.trial.should_prune() and step < STEPS:
            trial.is_pruned = True
            self.pool.stop(key)

    def _finish(self, trial: _RunningTrial, event: JobEvent) -> None:
        states, kind = import_optuna().trial.TrialState, "stopped"
        text = kind  # its trial stays in the state running, and the next command continues it
        if event.kind == "failed":
            kind, text = "failed", event.why
            trial.trial.set_user_attr("why", text)
            self.study.tell(trial.trial, state=states.FAIL)
        elif len(trial.curves) == len(self.plan.seeds):
            values = [self._value(seed, curve) for seed, curve in zip(self.plan.seeds, trial.curves, strict=True)]
            trial.trial.set_user_attr("values", values)
            self.study.tell(trial.trial, sum(values) / len(values))
            kind, text = "done", f"{self.plan.objective} {sum(values) / len(values):.3f}"
        elif trial.is_pruned and not self.stopped():
            self.study.tell(trial.trial, state=states.PRUNED)
            kind, text = "pruned", "given up"
        del self._running[trial.method]
        self.listen(Event(trial.trial.number, trial.method, kind, 1.0, text))
        delayed, self._delayed = self._delayed, []
        for each in [] if self.stopped() else delayed:
            self._start(each)

    def _value(self, seed: int, curve: RunCurve) -> float:
        budget_s = self.plan.budgets_s[seed]
        if self.plan.is_time:
            return time_ratio(curve, budget_s, self.references[seed])
        value = value_at_budget(curve, budget_s)
        return value if value is not None else math.inf if self.plan.is_minimised else 0.0


def _progress_text(now: Progress) -> str:
    return f"clock {now.clock_s:,.0f} s{now.value_text}"
