"""The trials of a sweep, side by side, each in a process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import DIED, process_context
from fedbalancer.experiments.plan import BUDGET_METHOD
from fedbalancer.experiments.sweep.objective import Reference, accuracy_at_budget, reference, time_ratio
from fedbalancer.experiments.sweep.plan import SweepPlan, run_folder
from fedbalancer.experiments.sweep.study import finished, with_optuna
from fedbalancer.experiments.sweep.worker import Ended, News, Work, carry_out, start
from fedbalancer.reporting import RunCurve
from fedbalancer.simulation.executors import Resources

if TYPE_CHECKING:
    import optuna

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


@dataclass
class Pool:
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
def trial_processes(side_by_side: int, each: Resources) -> Iterator[Pool]:
    context = process_context("fedbalancer.experiments.sweep.worker")
    news, stops = context.Queue(), [context.Event() for _ in range(side_by_side)]
    pool = ProcessPoolExecutor(side_by_side, context, initializer=start, initargs=(each, news, stops))
    try:
        yield Pool(pool, news, stops)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class Driver:
    """Asks optuna for trials, has them carried out, passes news on, and tells optuna how they ended."""

    plan: SweepPlan
    out: Path
    study: optuna.Study
    pool: Pool
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
                    found = reference(ended.curves[0], self.plan.budgets_s[seed], self.plan.share)
                    if found is None:
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
            values = [self._value(seed, curve) for seed, curve in zip(self.plan.seeds, ended.curves, strict=True)]
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

    def _value(self, seed: int, curve: RunCurve) -> float:
        budget_s = self.plan.budgets_s[seed]
        if self.plan.minimised:
            return time_ratio(curve, budget_s, self.references[seed])
        return accuracy_at_budget(curve, budget_s) or 0.0


def _outcome(future: Future[Ended], number: int) -> Ended:
    try:
        return future.result()
    except BrokenProcessPool:
        raise FedBalancerError(f"{DIED}; the same command goes on where this sweep stopped") from None
