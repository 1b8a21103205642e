"""One run of many: what it is, and how a process of the pool carries it out."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import become_worker
from fedbalancer.data import Task
from fedbalancer.experiments.events import JobEvent
from fedbalancer.experiments.execute import carry_on, execute, go
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.result import RunResult
from fedbalancer.experiments.rounds import Progress
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.trust import code_of
from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.clients import add_selections
from fedbalancer.reporting.results import split_by_schedule
from fedbalancer.simulation.executors import Resources
from fedbalancer.simulation.executors.shared_memory import SharedValue
from fedbalancer.store import MemoryRecorder, read_status
from fedbalancer.training.fast import kernels

PACKAGE = Path(__file__).parents[1]
OWN_TASK = "the task that every process was given"
"""Stands in the spec of a job for a task of the user's own, which every process got once."""


@dataclass(frozen=True)
class Job:
    """A run to start, or to go on with, in a folder or in memory. Where the run is there already, `changes` are those
    to its spec."""

    spec: RunSpec
    place: Path | MemoryRecorder
    overwrite: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.spec.key


class _Here:
    """What a process of the pool holds: its task, who trains, and the way back to the driver."""

    def __init__(self, task: Task | None, resources: Resources, news: Any, stop: Any) -> None:
        self.task, self.news, self.stop = task, news, stop
        self.executors = ExecutorCache(resources)


_here: _Here | None = None


def start(given: SharedValue, news: Any, stop: Any) -> None:
    """The first thing in a process of the pool."""
    global _here  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    task, resources = given.value
    _here = _Here(task, resources, news, stop)
    given.close()


def carry_out(packed_job: bytes, decided: Mapping[str, str | None] | None = None) -> bytes:
    """One job, in this process, to its end, with the kernels that the driver has. Job and event travel packed: what a
    script or notebook defines is in them by value."""
    assert _here is not None
    kernels.follow(decided)
    packed: bytes = cloudpickle.dumps(_carried_out(cloudpickle.loads(packed_job), _here))
    return packed


def _carried_out(job: Job, here: _Here) -> JobEvent:
    if here.stop.is_set():
        return JobEvent(job.key, "stopped", why="not started")

    def progress(now: Progress) -> None:
        here.news.put(JobEvent(job.key, "running", now))

    try:
        result = _run_or_resume(job, here, progress)
    except FedBalancerError as error:
        return JobEvent(job.key, "failed", why=str(error))
    except Exception as error:
        return JobEvent(job.key, "failed", why=f"{type(error).__name__}: {error} ({_place_of(error)})")
    memory = job.place if isinstance(job.place, MemoryRecorder) else None
    return JobEvent(job.key, result.status, curve=curve_of(job.key, result), memory=memory)


def _place_of(error: Exception) -> str:
    """Where it was raised: in code of the user's own if that had a part in it, or else where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE) and not _installed(frame)]
    place = (own or frames)[-1]
    return f"{place.filename}, line {place.lineno}, in {place.name}"


def _installed(frame: traceback.FrameSummary) -> bool:
    return "site-packages" in frame.filename or frame.filename.startswith((sys.base_prefix, "<"))


def curve_of(key: tuple[str, int], result: RunResult) -> RunCurve:
    """What scoring needs of a run."""
    end_s = float(result.rounds["end_s"][-1]) if len(result.rounds) else None
    population = result.population
    if population is not None:
        population = add_selections(population, result.rounds, result.clients.lazy())
    by_rounds, grid = split_by_schedule(result.evals)
    return RunCurve(*key, by_rounds, result.status, end_s, result.rounds, grid, population)


def _run_or_resume(job: Job, here: _Here, progress: Callable[[Progress], None]) -> RunResult:
    spec = replace(job.spec, task=here.task) if here.task is not None else job.spec
    executors, stopped = here.executors, here.stop.is_set
    if isinstance(job.place, MemoryRecorder):
        spec = replace(spec, **job.changes)
        return go(spec, executors.load_task(spec), job.place, executors, progress, stopped)
    if job.overwrite or read_status(job.place) == "absent":
        return execute(
            spec, job.place, overwrite=job.overwrite, executors=executors, progress=progress, stopped=stopped
        )
    changes = {"backend": spec.backend, "device": spec.device, **job.changes}
    method = spec.method if not isinstance(spec.method, str) else None
    return carry_on(
        job.place, executors, changes, task=here.task, method=method, trusted=code_of(spec), progress=progress,
        stopped=stopped,
    )  # fmt: skip
