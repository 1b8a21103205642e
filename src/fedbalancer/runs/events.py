"""News of runs that go on, for whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedbalancer.report import RunCurve
from fedbalancer.runs.rounds import Progress
from fedbalancer.store import MemoryRecorder


@dataclass(frozen=True)
class JobEvent:
    """News of a job: `kind` is running, done, stopped or failed, or found if it was done before. One that ended brings
    its `curve` and, if there is no folder, all that is needed to go on with it in `memory`."""

    key: tuple[str, int]
    kind: str
    progress: Progress | None = None
    why: str = ""
    curve: RunCurve | None = field(default=None, compare=False)
    memory: MemoryRecorder | None = field(default=None, compare=False)


Listen = Callable[[JobEvent], None]
