"""A process of a sweep: it carries out the runs of one trial after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import become_worker
from fedbalancer.experiments.execute import RunResult, carry_on, execute
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.job import curve_of
from fedbalancer.experiments.rounds import Progress
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.trust import code_of
from fedbalancer.reporting import RunCurve
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import read_status


@dataclass(frozen=True)
class Work:
    """The runs of a trial, in their order, and the number of the flag that stops them."""

    number: int
    slot: int
    runs: tuple[tuple[RunSpec, Path], ...]


@dataclass(frozen=True)
class News:
    """How far a run of a trial has come."""

    number: int
    run: int
    progress: Progress


@dataclass(frozen=True, eq=False)
class Ended:
    """A trial that ended: `kind` is done, stopped or failed, `curves` are those of every run that is done."""

    number: int
    kind: str
    curves: tuple[RunCurve, ...] = ()
    why: str = ""


@dataclass
class _Here:
    executors: ExecutorCache
    news: Any
    stops: Sequence[Any]


_here: _Here | None = None


def start(resources: Resources, news: Any, stops: Sequence[Any]) -> None:
    """The first thing in a process."""
    global _here  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    _here = _Here(ExecutorCache(resources), news, stops)


def carry_out(work: Work) -> Ended:
    """All runs of a trial; those that are done already are only read."""
    assert _here is not None
    done: list[RunCurve] = []
    for place, (spec, folder) in enumerate(work.runs):
        try:
            result = _run_or_resume(work, place, spec, folder, _here)
        except FedBalancerError as error:
            return Ended(work.number, "failed", why=str(error))
        except Exception as error:
            return Ended(work.number, "failed", why=f"{type(error).__name__}: {error}")
        if result.status != "done":
            return Ended(work.number, "stopped")
        done.append(curve_of(spec.key, result))
    return Ended(work.number, "done", tuple(done))


def _run_or_resume(work: Work, place: int, spec: RunSpec, folder: Path, here: _Here) -> RunResult:
    def progress(now: Progress) -> None:
        here.news.put(News(work.number, place, now))

    stopped = here.stops[work.slot].is_set
    if read_status(folder) == "absent":
        return execute(spec, folder, executors=here.executors, progress=progress, stopped=stopped)
    return carry_on(folder, here.executors, {}, trusted=code_of(spec), progress=progress, stopped=stopped)
