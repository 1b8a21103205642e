"""Many runs side by side, each in a process of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import cloudpickle

from fedbalancer.core.processes import DIED, TRIES, Watchdog, process_context, without_main
from fedbalancer.data import Task
from fedbalancer.experiments.events import JobEvent, Listen
from fedbalancer.experiments.executor_cache import kernels_for
from fedbalancer.experiments.job import OWN_TASK, Job, carry_out, start
from fedbalancer.simulation.executors import Resources
from fedbalancer.simulation.executors.shared_memory import SharedValue

__all__ = ["Job", "JobEvent", "JobPool", "Listen"]


class JobPool:
    """Processes that carry out whole runs, kept for all the runs of a command.

    A process that has loaded the task, and made its trainers, uses them for every run that it gets.
    """

    def __init__(self, task: Task | None, processes: int, resources: Resources) -> None:
        """`task` is one of the user's own, which travels; one with a name is loaded by every process. `resources` are
        what each process has for its runs."""
        self._processes = processes
        self._own_task = task is not None
        self._context = process_context(__name__)
        self._given = SharedValue((task, resources))
        self._news: Any = None
        self._stop: Any = None
        self._pool: ProcessPoolExecutor | None = None
        self._watchdog = Watchdog()

    def run(self, jobs: Sequence[Job], listen: Listen, stopped: Callable[[], bool]) -> dict[tuple[str, int], JobEvent]:
        """Run all jobs; returns the last event of each. Asked to stop, it lets running jobs save themselves and starts
        no others. If a process dies, the jobs that it took along are done again, from where they had saved; they fail
        if that happens several times in a row and no job comes further."""
        last: dict[tuple[str, int], JobEvent] = {}
        reached, fruitless_rounds = _Reached(listen), 0
        while fruitless_rounds < TRIES:
            before = (len(last), reached.rounds)
            for event in self._ended([job for job in jobs if job.key not in last], reached, stopped):
                last[event.key] = event
                listen(event)
            if len(last) == len(jobs) or stopped():
                break
            fruitless_rounds = fruitless_rounds + 1 if (len(last), reached.rounds) == before else 0
            self._end()
        for job in jobs:
            if job.key not in last:
                last[job.key] = JobEvent(job.key, "failed", why=DIED)
                listen(last[job.key])
        return last

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._given.close()

    def _ended(self, jobs: Sequence[Job], listen: Listen, stopped: Callable[[], bool]) -> Iterator[JobEvent]:
        """The jobs as they end; those whose process died are left out."""
        pending = set(self._submitted(jobs))
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for event in _drain(self._news):
                listen(event)
            for future in done:
                with suppress(BrokenProcessPool):
                    yield cloudpickle.loads(future.result())
            if stopped() and not self._stop.is_set():
                self._stop.set()
            if self._pool is not None:
                self._watchdog.look(list(self._pool._processes or ()))

    def _submitted(self, jobs: Sequence[Job]) -> list[Future[bytes]]:
        if self._pool is None:  # a process that is killed may leave a queue locked: so new processes have new ones
            self._news, self._stop = self._context.Queue(), self._context.Event()
            self._pool = ProcessPoolExecutor(
                self._processes, self._context, initializer=start, initargs=(self._given, self._news, self._stop)
            )
        futures = []
        with suppress(BrokenProcessPool):
            for job in jobs:
                light = replace(job, spec=replace(job.spec, task=OWN_TASK)) if self._own_task else job
                packed, kernels = cloudpickle.dumps(light), kernels_for(job.spec)
                with without_main():
                    futures.append(self._pool.submit(carry_out, packed, kernels))
        return futures

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


class _Reached:
    """Hands news on, and keeps in mind how far each job has come."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._furthest: dict[tuple[str, int], int] = {}

    def __call__(self, event: JobEvent) -> None:
        if event.progress is not None:
            self._furthest[event.key] = max(event.progress.round, self._furthest.get(event.key, 0))
        self._listen(event)

    @property
    def rounds(self) -> int:
        """Of all jobs."""
        return sum(self._furthest.values())


def _drain(news: Any) -> Iterator[JobEvent]:
    try:
        while True:
            yield news.get_nowait()
    except queue.Empty:
        return
