"""Runs many runs in parallel, each in a worker process."""

from __future__ import annotations

import queue
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import DIED, TRIES, Watchdog, become_worker, process_context, without_main
from fedbalancer.data import Task
from fedbalancer.experiments.execute import RunResult, continue_run, execute, run_to_end
from fedbalancer.experiments.executor_cache import ExecutorCache, kernels_for
from fedbalancer.experiments.progress import JobEvent, Key, Listen, Progress
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.trust import code_of
from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.clients import add_selections
from fedbalancer.reporting.results import split_by_schedule
from fedbalancer.simulation.executors import Resources
from fedbalancer.simulation.executors.shared_memory import SharedValue
from fedbalancer.store import MemoryRecorder, read_status
from fedbalancer.training.fast import kernels

POLL_S = 0.2
PACKAGE = Path(__file__).parents[1]
SHARED_TASK = "the task that every process received"
"""Replaces a task object in the spec of a job; every process receives the object once."""


@dataclass(frozen=True)
class Job:
    """A run to start or continue.

    Args:
        spec: The run.
        storage: The run folder, or the record of a run in memory.
        overwrite: Replace a run that exists in the folder.
        changes: Changes to the spec of a run that exists.
    """

    spec: RunSpec
    storage: Path | MemoryRecorder
    overwrite: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Method name and seed."""
        return self.spec.key


class JobPool:
    """Worker processes that execute whole runs. A process keeps its task and trainers for the runs that follow.

    If a process dies, its runs continue from their checkpoints in a new one. They fail only if this happens `TRIES`
    times in a row without any progress.

    Args:
        task: A task object, which is sent to every process; None for a task that the processes load by name.
        processes: Number of processes.
        resources: What each process may use for its runs.
    """

    def __init__(self, task: Task | None, processes: int, resources: Resources) -> None:
        self._processes = processes
        self._shares_task = task is not None
        self._context = process_context(__name__)
        self._shared = SharedValue((task, resources))
        self._pool: ProcessPoolExecutor | None = None
        self._news: Any = None
        self._stops: list[Any] = []
        self._free = list(range(processes))
        self._running: dict[Future[bytes], tuple[Job, int]] = {}
        self._lost: list[Job] = []
        self._furthest: dict[Key, int] = {}
        self._ended = self._fruitless = 0
        self._last_advance = (0, 0)
        self._watchdog = Watchdog()

    def run(self, jobs: Sequence[Job], listen: Listen, stopped: Callable[[], bool]) -> dict[Key, JobEvent]:
        """Run all jobs.

        Args:
            jobs: The jobs, which start in this order.
            listen: Called for every event.
            stopped: Checked several times per second. If it returns True, running jobs save their state and stop, and
                no others start.

        Returns:
            The last event of every job.
        """
        waiting, last = deque(jobs), dict[Key, JobEvent]()
        while waiting or self.is_busy:
            if stopped():
                self.stop_all()
            while waiting and self.has_room and not stopped():
                self.submit(waiting.popleft())
            events = self.wait()
            if stopped():
                events += [JobEvent(job.key, "stopped", why="not started") for job in waiting]
                waiting.clear()
            elif any(event.why == DIED for event in events):
                events += [JobEvent(job.key, "failed", why=DIED) for job in waiting]
                waiting.clear()
            for event in events:
                if event.kind != "running":
                    last[event.key] = event
                listen(event)
        return last

    @property
    def has_room(self) -> bool:
        """Whether a process is free."""
        return bool(self._free)

    @property
    def is_busy(self) -> bool:
        """Whether a job has not ended yet."""
        return bool(self._running or self._lost)

    def submit(self, job: Job) -> None:
        """Start a job in a free process."""
        if self._pool is None:  # a killed process may leave a queue locked, so new processes get new ones
            self._news = self._context.Queue()
            self._stops = [self._context.Event() for _ in range(self._processes)]
            self._pool = ProcessPoolExecutor(
                self._processes, self._context, initializer=start, initargs=(self._shared, self._news, self._stops)
            )
        slot = self._free.pop()
        self._stops[slot].clear()
        light = replace(job, spec=replace(job.spec, task=SHARED_TASK)) if self._shares_task else job
        packed, decision = cloudpickle.dumps(light), kernels_for(job.spec)
        try:
            with without_main():
                self._running[self._pool.submit(carry_out, packed, slot, decision)] = job, slot
        except BrokenProcessPool:
            self._free.append(slot)
            self._lost.append(job)

    def stop(self, key: Key) -> None:
        """Ask a running job to save its state and stop."""
        for job, slot in self._running.values():
            if job.key == key:
                self._stops[slot].set()

    def stop_all(self) -> None:
        """Ask all running jobs to save their state and stop."""
        for stop in self._stops:
            stop.set()

    def wait(self) -> list[JobEvent]:
        """Wait until a job ends, at most `POLL_S` seconds.

        Returns:
            The events since the last call: progress first, then the jobs that have ended.
        """
        done: set[Future[bytes]] = set()
        if self._running:
            done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        events = self._drain_news()
        for future in done:
            events += self._collect(future)
        if self._lost:
            events += self._restart()
        elif self._pool is not None:
            self._watchdog.look(list(self._pool._processes or ()))
        return events

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._shared.close()

    def _collect(self, future: Future[bytes]) -> list[JobEvent]:
        job, slot = self._running.pop(future)
        self._free.append(slot)
        try:
            event: JobEvent = cloudpickle.loads(future.result())
        except BrokenProcessPool:
            self._lost.append(job)
            return []
        self._ended += 1
        return [event]

    def _restart(self) -> list[JobEvent]:
        """Replace the processes after one died, and continue its jobs."""
        wait(self._running)  # all of them end when a process dies
        events = [event for future in list(self._running) for event in self._collect(future)]
        self.close()
        advance = (self._ended, sum(self._furthest.values()))
        self._fruitless = self._fruitless + 1 if advance == self._last_advance else 0
        self._last_advance = advance
        lost, self._lost = self._lost, []
        if self._fruitless >= TRIES:
            self._fruitless = 0
            return events + [JobEvent(job.key, "failed", why=DIED) for job in lost]
        for job in lost:
            self.submit(job)
        return events

    def _drain_news(self) -> list[JobEvent]:
        events: list[JobEvent] = []
        running = {job.key for job, _ in self._running.values()}
        try:
            while self._news is not None:
                event: JobEvent = self._news.get_nowait()
                if event.key in running and event.progress is not None:
                    self._furthest[event.key] = max(event.progress.round, self._furthest.get(event.key, 0))
                    events.append(event)
        except queue.Empty:
            pass
        return events


class _Worker:
    """The state of a worker process: its task, its executors and its channel to the driver."""

    def __init__(self, task: Task | None, resources: Resources, news: Any, stops: Sequence[Any]) -> None:
        self.task, self.news, self.stops = task, news, stops
        self.executors = ExecutorCache(resources)


_worker: _Worker | None = None


def start(shared: SharedValue, news: Any, stops: Sequence[Any]) -> None:
    """Initialize a worker process.

    Args:
        shared: The task and the resources of the process.
        news: Queue for progress events.
        stops: Flags that stop running jobs, one per process.
    """
    global _worker  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    task, resources = shared.value
    _worker = _Worker(task, resources, news, stops)
    shared.close()


def carry_out(packed_job: bytes, slot: int, decision: Mapping[str, str | None] | None = None) -> bytes:
    """Execute a job in this worker process.

    Args:
        packed_job: The `Job`, pickled with cloudpickle: definitions of a script or notebook travel by value.
        slot: Index of the flag that stops the job.
        decision: The kernels that the driver uses.

    Returns:
        The last `JobEvent` of the job, pickled.
    """
    assert _worker is not None
    kernels.follow(decision)
    packed: bytes = cloudpickle.dumps(_execute_job(cloudpickle.loads(packed_job), _worker, _worker.stops[slot].is_set))
    return packed


def _execute_job(job: Job, worker: _Worker, stopped: Callable[[], bool]) -> JobEvent:
    if stopped():
        return JobEvent(job.key, "stopped", why="not started")

    def progress(now: Progress) -> None:
        worker.news.put(JobEvent(job.key, "running", now))

    try:
        result = _run_or_resume(job, worker, progress, stopped)
    except FedBalancerError as error:
        return JobEvent(job.key, "failed", why=str(error))
    except Exception as error:
        return JobEvent(job.key, "failed", why=f"{type(error).__name__}: {error} ({_error_location(error)})")
    memory = job.storage if isinstance(job.storage, MemoryRecorder) else None
    return JobEvent(job.key, result.status, curve=curve_of(job.key, result), memory=memory)


def _run_or_resume(
    job: Job, worker: _Worker, progress: Callable[[Progress], None], stopped: Callable[[], bool]
) -> RunResult:
    spec = replace(job.spec, task=worker.task) if worker.task is not None else job.spec
    executors = worker.executors
    if isinstance(job.storage, MemoryRecorder):
        spec = replace(spec, **job.changes)
        return run_to_end(spec, executors.load_task(spec), job.storage, executors, progress, stopped)
    if job.overwrite or read_status(job.storage) == "absent":
        return execute(
            spec, job.storage, overwrite=job.overwrite, executors=executors, progress=progress, stopped=stopped
        )
    changes = {"backend": spec.backend, "device": spec.device, **job.changes}
    method = spec.method if not isinstance(spec.method, str) else None
    return continue_run(
        job.storage, executors, changes, task=worker.task, method=method, trusted=code_of(spec), progress=progress,
        stopped=stopped, devices=spec.devices if spec.has_device_object else None,
    )  # fmt: skip


def _error_location(error: Exception) -> str:
    """Return where an error was raised: the last frame in the user's code, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE) and not _is_installed(frame)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return "site-packages" in frame.filename or frame.filename.startswith((sys.base_prefix, "<"))


def curve_of(key: Key, result: RunResult) -> RunCurve:
    """Return the parts of a run's result that scoring needs.

    Args:
        key: Method name and seed.
        result: The result of the run.
    """
    end_s = float(result.rounds["end_s"][-1]) if len(result.rounds) else None
    population = result.population
    if population is not None:
        population = add_selections(population, result.rounds, result.clients.lazy())
    by_rounds, grid = split_by_schedule(result.evals)
    return RunCurve(*key, by_rounds, result.status, end_s, result.rounds, grid, population, result.metric)
