"""The hook: four methods, of which a sink may have any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Say = Callable[[str, str], None]
"""Told the name of a sink that failed, and why."""
Hook = Callable[[Mapping[str, Any]], None]
"""Told a row of a table, by its columns."""


class Sink:
    """Told what goes on in one run. To write a sink of your own inherit from this, or write a class with some of these
    methods, and name it: `--track package.module:Class`. Each run makes one of its own.

    >>> class Longest(Sink):
    ...     seconds = 0.0
    ...     def on_round(self, row):
    ...         self.seconds = max(self.seconds, row["end_s"] - row["start_s"])
    """

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        """Before the first round, also of a run that goes on: what manifest.json says."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """After every round: its row of rounds.parquet."""

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """After every evaluation: its row of evals.parquet."""

    def on_end(self, status: str) -> None:
        """At the end: done, stopped or failed."""


@dataclass(frozen=True)
class Callbacks(Sink):
    """A sink of two functions, `fb.run(..., on_round=..., on_eval=...)`. They are part of the user's program: what they
    raise ends the run."""

    round: Hook | None = None
    evaluation: Hook | None = None

    def on_round(self, row: Mapping[str, Any]) -> None:
        if self.round is not None:
            self.round(row)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        if self.evaluation is not None:
            self.evaluation(row)


class Tracks:
    """All sinks of a run. One that raises is left out from then on, and `say` is told its name and why; the run goes
    on."""

    def __init__(self, sinks: Sequence[tuple[str, Any]], say: Say = lambda name, why: None) -> None:
        self._sinks, self._say = list(sinks), say

    def tell(self, hook: str, value: Any) -> None:
        """Call this method of all sinks that have it."""
        for name, sink in list(self._sinks):
            try:
                getattr(sink, hook, _nothing)(value)
            except Exception as error:
                if isinstance(sink, Callbacks):
                    raise
                self._sinks.remove((name, sink))
                self._say(name, f"{type(error).__name__}: {error}")


def _nothing(value: Any) -> None:
    """What a sink does that has no such method."""
