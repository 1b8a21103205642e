"""One run of many: what it is, and how a process of the pool carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbalancer.engine.executors.parcel import Parcel
from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import become_worker, unpacked
from fedbalancer.runs.execute import Progress, RunResult, carry_on, execute
from fedbalancer.runs.spec import RunSpec
from fedbalancer.runs.workforce import Workforce
from fedbalancer.store import read_manifest
from fedbalancer.tasks import Task

IN_PARCEL = "the task in the parcel"
"""Stands in the spec of a job for a task of the user's own, which every process got once."""


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


def is_run(folder: Path) -> bool:
    """Whether a run was ever started here."""
    return (folder / "manifest.json").is_file()


def status(folder: Path) -> str:
    """The status that a run folder's manifest gives, or "absent"."""
    return str(read_manifest(folder)["status"]) if is_run(folder) else "absent"


class _Here:
    """What a process of the pool holds: the way back to the driver, its task, and who trains."""

    def __init__(self, task: Task | None, workforce: Mapping[str, Any], news: Any, stop: Any) -> None:
        self.news, self.stop = news, stop
        self.workforce = Workforce(**workforce)
        self._own = task
        self._named: tuple[tuple[Any, ...], Task] | None = None

    def with_task(self, spec: RunSpec) -> tuple[RunSpec, Task]:
        """The spec and its task, loaded once for all runs of the same one."""
        if self._own is not None:
            return replace(spec, task=self._own), self._own
        name = (spec.task, spec.scale, spec.users, spec.variant)
        if self._named is None or self._named[0] != name:
            self._named = (name, spec.load_task())
        return spec, self._named[1]


_here: _Here | None = None


def start(parcel: Parcel, news: Any, stop: Any) -> None:
    """The first thing in a process of the pool."""
    global _here  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    task, workforce = parcel.value
    _here = _Here(task, workforce, news, stop)
    parcel.close()


def carry_out(packed_job: bytes) -> JobEvent:
    """One job, in this process, to its end."""
    assert _here is not None
    here, job = _here, unpacked(packed_job)
    if here.stop.is_set():
        return JobEvent(job.key, "stopped", why="not started")

    def progress(now: Progress) -> None:
        here.news.put(JobEvent(job.key, "running", now))

    try:
        result = _run_or_resume(job, here, progress)
    except FedBalancerError as error:
        return JobEvent(job.key, "failed", why=str(error))
    except Exception as error:
        return JobEvent(job.key, "failed", why=f"{type(error).__name__}: {error}")
    return JobEvent(job.key, result.status)


def _run_or_resume(job: Job, here: _Here, progress: Callable[[Progress], None]) -> RunResult:
    (spec, task), stopped = here.with_task(job.spec), here.stop.is_set
    method = spec.method if not isinstance(spec.method, str) else None
    if job.extend is None and (job.overwrite or not is_run(job.folder)):
        return execute(
            spec, job.folder, task=task, overwrite=job.overwrite, workforce=here.workforce,
            progress=progress, stopped=stopped,
        )  # fmt: skip
    changes: dict[str, Any] = {"engine": spec.engine, "device": spec.device}
    if job.extend is not None:
        changes |= {"budget_s": job.extend[0], "target": job.extend[1]}
    return carry_on(job.folder, here.workforce, changes, task=task, method=method, progress=progress, stopped=stopped)
