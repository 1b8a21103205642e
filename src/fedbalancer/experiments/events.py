"""News of runs that go on, for whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedbalancer.experiments.rounds import Progress
from fedbalancer.reporting import RunCurve
from fedbalancer.store import MemoryRecorder


@dataclass(frozen=True)
class JobEvent:
    """News of a job: `kind` is running, done, stopped or failed, found if it was done before, waiting if it is yet to
    begin, or further if it was done and will go on for longer. One that ended brings its `curve` and, if there is no
    folder, all that is needed to go on with it in `memory`."""

    key: tuple[str, int]
    kind: str
    progress: Progress | None = None
    why: str = ""
    curve: RunCurve | None = field(default=None, compare=False)
    memory: MemoryRecorder | None = field(default=None, compare=False)


Listen = Callable[[JobEvent], None]


def goes_further(key: tuple[str, int], curve: RunCurve, budget_s: float) -> JobEvent:
    """News that a run with this curve will go on until a longer budget, so that nobody thinks that all is done."""
    return JobEvent(key, "further", Progress(0, curve.last_s, None, min(curve.last_s / budget_s, 1.0)))
