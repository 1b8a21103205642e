"""A recorder that also tells sinks what it records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from fedbalancer.experiments.rounds import Recorder
from fedbalancer.experiments.tracking import Tracks, open_sinks
from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder


def tracked(recorder: Recorder, sinks: Sequence[Any], described: Callable[[], Mapping[str, Any]]) -> Recorder:
    """The recorder, listened to by these sinks, if there are any. What is wrong with a sink stands in the run's log.
    `described` gives the manifest of a run without a folder."""
    if not sinks:
        return recorder

    def say(name: str, why: str) -> None:
        if isinstance(recorder, RunFolder):
            recorder.log("sink failed", sink=name, why=why)

    tracks = Tracks(open_sinks(sinks, recorder.path, say), say)
    tracks.tell("on_start", dict(recorder.manifest if isinstance(recorder, RunFolder) else described()))
    return cast(Recorder, _Tracked(recorder, tracks))


class _Tracked:
    """Hands everything on to the recorder, and rows and the end to the sinks too."""

    def __init__(self, recorder: Recorder, tracks: Tracks) -> None:
        self._recorder, self._tracks = recorder, tracks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def record(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> None:
        self._recorder.record(row, evals, clients)
        if row is not None:
            self._tracks.tell("on_round", row._asdict())
        for each in evals:
            self._tracks.tell("on_evaluation", each._asdict())

    def finish(self, status: str, why: str | None, *model: Any) -> None:
        self._recorder.finish(status, why, *model)
        self._tracks.tell("on_end", status)
