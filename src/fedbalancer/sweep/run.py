"""A sweep from start to end, or on from where it stopped: trials side by side, each in a process."""

from __future__ import annotations

import json
import queue
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.engine.executors import Resources
from fedbalancer.errors import FedBalancerError, RunFolderError
from fedbalancer.files import readable, write_json
from fedbalancer.processes import DIED, process_context
from fedbalancer.runs.compare import shared_results
from fedbalancer.runs.plan import BUDGET_METHOD
from fedbalancer.store.contents import make_folder
from fedbalancer.store.lock import FolderLock
from fedbalancer.sweep.objective import Reference, accuracy_at_budget, reference, time_ratio
from fedbalancer.sweep.plan import SweepPlan, run_folder
from fedbalancer.sweep.results import Sweep, write_results
from fedbalancer.sweep.study import STORAGE, finished, open_study, with_optuna
from fedbalancer.sweep.worker import Ended, News, Work, carry_out, start

if TYPE_CHECKING:
    import optuna

FILE = "sweep.json"
STEPS = 20
"""Parts of the budget after which a trial is looked at."""
REFERENCE = -1
"""The number of what is no trial: FedAvg+1T's own runs."""


@dataclass(frozen=True)
class Event:
    """News for whoever watches: a trial, the method it runs, and in words where it stands."""

    number: int
    method: str
    kind: str
    share: float = 0.0
    words: str = ""


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
    """Run or go on with a sweep in the folder `out`, and write its table and figure there."""
    with_optuna()
    side_by_side, each = Resources(workers=1).shared_out(max(plan.trials, len(plan.seeds)), jobs)
    make_folder(out)
    lock = FolderLock(out)
    try:
        _claim(plan, out, overwrite)
        study = open_study(plan, out, prune=prune)
        with shared_results(out) as results, _pool(side_by_side, replace(each, results=results)) as pool:
            driver = _Driver(plan, out, study, pool, listen, stopped)
            driver.go()
        return write_results(plan, study, out, stopped())
    finally:
        lock.release()


def _claim(plan: SweepPlan, out: Path, overwrite: bool) -> None:
    """Make the folder this sweep's, unless it is another's."""
    file = out / FILE
    if overwrite and file.is_file():
        for name in ("runs", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (FILE, STORAGE, "trials.parquet", "table.md"):
            (out / name).unlink(missing_ok=True)
    mine = readable(plan.described())
    if file.is_file():
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunFolderError(f"{file} is not JSON: {error}") from error
        if there != mine:
            other = [key for key in mine if not isinstance(there, dict) or there.get(key) != mine[key]]
            raise RunFolderError(
                f"{out} holds a sweep with other {', '.join(other)}; give another --out, or --overwrite"
            )
    elif any(path.name != ".lock" for path in out.iterdir()):
        raise RunFolderError(f"{out} holds something else than a sweep; give another --out")
    write_json(file, mine)


@dataclass
class _Pool:
    """Processes for trials, a flag for each to stop what it does, and their way to tell."""

    processes: ProcessPoolExecutor
    news: Any
    stops: list[Any]

    def drained(self) -> Iterator[News]:
        try:
            while True:
                yield self.news.get_nowait()
        except queue.Empty:
            return


@contextmanager
def _pool(side_by_side: int, each: Resources) -> Iterator[_Pool]:
    context = process_context("fedbalancer.sweep.worker")
    news, stops = context.Queue(), [context.Event() for _ in range(side_by_side)]
    pool = ProcessPoolExecutor(side_by_side, context, initializer=start, initargs=(each, news, stops))
    try:
        yield _Pool(pool, news, stops)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class _Driver:
    plan: SweepPlan
    out: Path
    study: optuna.Study
    pool: _Pool
    listen: Listen
    stopped: Callable[[], bool]
    references: dict[int, Reference] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    trials: dict[int, Any] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)

    def go(self) -> None:
        if self.plan.minimised and not self._find_references():
            return
        begun = finished(self.study)
        slots = list(range(len(self.pool.stops)))
        going: dict[Future[Ended], Work] = {}
        while True:
            while slots and begun < self.plan.trials and not self.stopped():
                begun += 1
                work = self._next(slots.pop())
                going[self.pool.processes.submit(carry_out, work)] = work
            if not going:
                return
            for future in self._first(going):
                work = going.pop(future)
                slots.append(work.slot)
                self._end(_outcome(future, work.number))

    def _find_references(self) -> bool:
        """FedAvg+1T on every seed, which gives the targets; False if there was no time for it."""
        self.names[REFERENCE] = BUDGET_METHOD
        runs = {seed: ((self.plan.spec(BUDGET_METHOD, seed), run_folder(self.out, BUDGET_METHOD, seed)),)
                for seed in self.plan.seeds}  # fmt: skip
        going = {self.pool.processes.submit(carry_out, Work(REFERENCE, 0, run)): seed for seed, run in runs.items()}
        while going:
            for future in self._first(going):
                seed, ended = going.pop(future), _outcome(future, REFERENCE)
                if ended.kind == "failed":
                    raise FedBalancerError(f"{BUDGET_METHOD} seed {seed}, which sets the target, failed: {ended.why}")
                if ended.kind == "done":
                    found = reference(ended.evals[0], self.plan.budgets_s[seed], self.plan.share)
                    if found is None or found.target <= 0:
                        raise FedBalancerError(f"{BUDGET_METHOD} seed {seed} has no accuracy to set a target by")
                    self.references[seed] = found
        return len(self.references) == len(self.plan.seeds)

    def _next(self, slot: int) -> Work:
        """The next trial, as optuna wants it."""
        trial = self.study.ask()
        name = self.plan.space.name(self.plan.space.drawn(trial))
        trial.set_user_attr("method", name)
        self.trials[trial.number], self.names[trial.number] = trial, name
        self.pool.stops[slot].clear()
        targets = {seed: found.target for seed, found in self.references.items()}
        runs = [(self.plan.spec(name, seed, targets.get(seed)), run_folder(self.out, name, seed))
                for seed in self.plan.seeds]  # fmt: skip
        return Work(trial.number, slot, tuple(runs))

    def _first(self, going: dict[Future[Ended], Any]) -> set[Future[Ended]]:
        """Those that end first; until then news is passed on, hopeless trials are given up, and a stop is too."""
        while True:
            done, _ = wait(going, timeout=0.2, return_when=FIRST_COMPLETED)
            for news in self.pool.drained():
                self._take(news, going)
            if self.stopped():
                for stop in self.pool.stops:
                    stop.set()
            if done:
                return done

    def _take(self, news: News, going: dict[Future[Ended], Any]) -> None:
        now, count = news.progress, 1 if news.number == REFERENCE else len(self.plan.seeds)
        where = f"clock {now.clock_s:,.0f} s" + ("" if now.accuracy is None else f", accuracy {now.accuracy:.3f}")
        self.listen(Event(news.number, self.names[news.number], "running", (news.run + now.share) / count, where))
        trial, step = self.trials.get(news.number), int(STEPS * now.share)
        if trial is None or news.run or now.accuracy is None or step <= self.steps.get(news.number, 0):
            return  # looked at on the first seed only: others have other accuracies at the same time
        self.steps[news.number] = step
        trial.report(1 - now.accuracy if self.plan.minimised else now.accuracy, step)
        if trial.should_prune() and step < STEPS:
            self.pruned.add(news.number)
            for work in going.values():
                if work.number == news.number:
                    self.pool.stops[work.slot].set()

    def _end(self, ended: Ended) -> None:
        optuna, number = with_optuna(), ended.number
        states, trial = optuna.trial.TrialState, self.trials[number]
        if ended.kind == "done":
            values = [self._value(seed, evals) for seed, evals in zip(self.plan.seeds, ended.evals, strict=True)]
            trial.set_user_attr("values", values)
            self.study.tell(trial, sum(values) / len(values))
            words = f"{self.plan.objective} {sum(values) / len(values):.3f}"
        elif ended.kind == "failed":
            trial.set_user_attr("why", ended.why)
            self.study.tell(trial, state=states.FAIL)
            words = ended.why
        elif number in self.pruned and not self.stopped():
            self.study.tell(trial, state=states.PRUNED)
            words = "given up"
        else:
            words = "stopped"  # its trial stays as running, for the next command to take up
        kind = "pruned" if words == "given up" else ended.kind
        self.listen(Event(number, self.names[number], kind, 1.0, words))

    def _value(self, seed: int, evals: Any) -> float:
        budget_s = self.plan.budgets_s[seed]
        if self.plan.minimised:
            return time_ratio(evals, budget_s, self.references[seed])
        return accuracy_at_budget(evals, budget_s) or 0.0


def _outcome(future: Future[Ended], number: int) -> Ended:
    try:
        return future.result()
    except BrokenProcessPool:
        raise FedBalancerError(f"{DIED}; the same command goes on where this sweep stopped") from None
