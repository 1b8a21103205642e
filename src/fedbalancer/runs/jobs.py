"""Many runs side by side, each in a process of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import DIED, become_worker, packed, process_context, unpacked
from fedbalancer.runs.execute import Progress, execute, resume
from fedbalancer.runs.spec import RunSpec
from fedbalancer.store import read_manifest
from fedbalancer.tasks import Task


@dataclass(frozen=True)
class Job:
    """A run to start or to go on with; `extend` carries a finished run on to (clock, target accuracy)."""

    spec: RunSpec
    folder: Path
    overwrite: bool = False
    extend: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.spec.method_name, self.spec.seed


@dataclass(frozen=True)
class JobEvent:
    """News of a job: `kind` is running, done, stopped or failed."""

    key: tuple[str, int]
    kind: str
    progress: Progress | None = None
    why: str = ""


def run_jobs(
    jobs: Sequence[Job], task: Task, workers: int, listen: Callable[[JobEvent], None], stopped: Callable[[], bool]
) -> dict[tuple[str, int], JobEvent]:
    """Run all jobs on `workers` processes; returns the last event of each. Asked to stop, it lets running jobs save
    themselves and starts no others."""
    context = process_context()
    news, stop = context.Queue(), context.Event()
    last: dict[tuple[str, int], JobEvent] = {}
    with ProcessPoolExecutor(
        min(workers, max(len(jobs), 1)),
        context,
        initializer=_start,
        initargs=(packed(_sendable(task, jobs)), news, stop),
    ) as pool:
        futures: dict[Future[JobEvent], Job] = {pool.submit(_work, packed(job)): job for job in jobs}
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for event in _drain(news):
                listen(event)
            for future in done:
                event = _outcome(future, futures[future])
                last[event.key] = event
                listen(event)
            if stopped() and not stop.is_set():
                stop.set()
    return last


def _outcome(future: Future[JobEvent], job: Job) -> JobEvent:
    try:
        return future.result()
    except BrokenProcessPool:
        return JobEvent(job.key, "failed", why=DIED)


def _drain(news: Any) -> Iterator[JobEvent]:
    try:
        while True:
            yield news.get_nowait()
    except queue.Empty:
        return


def _sendable(task: Task, jobs: Sequence[Job]) -> Task | None:
    """A task with a name is loaded by every worker; one of the user's own travels."""
    return None if all(isinstance(job.spec.task, str) for job in jobs) else task


_shared: tuple[Task | None, Any, Any] | None = None


def _start(task: bytes, news: Any, stop: Any) -> None:
    global _shared  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    _shared = (unpacked(task), news, stop)


def _work(packed_job: bytes) -> JobEvent:
    assert _shared is not None
    job: Job = unpacked(packed_job)
    task, news, stop = _shared
    if stop.is_set():
        return JobEvent(job.key, "stopped", why="not started")

    def progress(now: Progress) -> None:
        news.put(JobEvent(job.key, "running", now))

    try:
        result = _run_or_resume(job, task, progress, stop.is_set)
    except FedBalancerError as error:
        return JobEvent(job.key, "failed", why=str(error))
    except Exception as error:
        return JobEvent(job.key, "failed", why=f"{type(error).__name__}: {error}")
    return JobEvent(job.key, result.status)


def _run_or_resume(
    job: Job, task: Task | None, progress: Callable[[Progress], None], stopped: Callable[[], bool]
) -> Any:
    method = job.spec.method if not isinstance(job.spec.method, str) else None
    if job.extend is not None:
        budget_s, target = job.extend
        return resume(
            job.folder, task=task, method=method, budget_s=budget_s, target=target, progress=progress, stopped=stopped
        )
    if not job.overwrite and is_run(job.folder):
        return resume(job.folder, task=task, method=method, progress=progress, stopped=stopped)
    return execute(job.spec, job.folder, task=task, overwrite=job.overwrite, progress=progress, stopped=stopped)


def is_run(folder: Path) -> bool:
    """Whether a run was ever started here."""
    return (folder / "manifest.json").is_file()


def status(folder: Path) -> str:
    """The status that a run folder's manifest gives, or "absent"."""
    return str(read_manifest(folder)["status"]) if is_run(folder) else "absent"
