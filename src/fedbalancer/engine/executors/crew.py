"""Workers as an executor sees them, and which of them is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from fedbalancer.engine.executors.chunks import Chunk
from fedbalancer.engine.executors.worker import Answer
from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import DIED
from fedbalancer.types import Layout, Weights

TRIES = 3
"""Workers that may die over one chunk, or at their start, before it is an error."""


class Crew(Protocol):
    """Workers in numbered places. Each is asked one thing at a time."""

    @property
    def size(self) -> int: ...
    def start(self, place: int) -> None:
        """A fresh worker in this place, whoever was there before; its first answer is the layout."""

    def end(self, place: int) -> None:
        """No worker in this place any more, whatever it is at."""

    def shared(self, weights: Weights | None, updates: int) -> AbstractContextManager[Any]:
        """The weights, ready for all workers, and room for that many updates."""

    def ask(self, place: int, verb: str, chunk: Chunk, items: Sequence[Any], shared: Any) -> None: ...
    def answers(self, timeout_s: float | None) -> Iterable[tuple[int, Answer | None]]:
        """Whoever has answered, waiting for at least one; None for a worker that died."""

    def close(self) -> None: ...


class Roster:
    """Who of a crew is idle, who is busy with what, and who is still making a trainer."""

    def __init__(self, crew: Crew) -> None:
        self.idle: list[int] = []
        self.busy: dict[int, Chunk] = {}
        self.starting: dict[int, int] = {}
        self.layout: Layout | None = None
        self._crew = crew
        self._vacant = list(range(crew.size))
        self._broken: Exception | None = None

    def fill(self) -> None:
        """A worker in every place; raises if workers cannot even start."""
        if self._broken is not None:
            raise self._broken
        while self._vacant:
            self._start(self._vacant.pop())

    def take(self, chunk: Chunk) -> int:
        """Who is to do this."""
        place = self.idle.pop(0)
        self.busy[place] = chunk
        return place

    def hear(self, timeout_s: float | None) -> Iterator[tuple[Chunk, Answer | None]]:
        """Chunks that were answered, or whose worker died (None) and was replaced."""
        for place, answer in self._crew.answers(timeout_s):
            if place in self.starting:
                self._started(place, answer)
                continue
            chunk = self.busy.pop(place, None)
            if answer is not None:
                self.idle.append(place)
            else:
                self.idle = [other for other in self.idle if other != place]
                self._start(place)
            if chunk is not None:
                yield chunk, answer

    def hear_starts(self, timeout_s: float | None) -> None:
        """Whoever has made a trainer, while nobody is busy."""
        self.fill()
        for chunk, _ in self.hear(timeout_s):
            raise AssertionError(f"nobody was asked for {chunk}")

    @contextmanager
    def nobody_left_busy(self) -> Iterator[None]:
        """If the work is broken off, those who are still at it are sent away."""
        try:
            yield
        finally:
            for place in list(self.busy):
                del self.busy[place]
                self._crew.end(place)
                self._vacant.append(place)

    def _start(self, place: int) -> None:
        self.starting[place] = self.starting.get(place, 0) + 1
        self._crew.start(place)

    def _started(self, place: int, answer: Answer | None) -> None:
        if answer is not None and answer.error is None:
            del self.starting[place]
            self.layout = answer.values[0]
            self.idle.append(place)
        elif answer is None and self.starting[place] < TRIES:
            self._start(place)
        else:
            self._broken = answer.error if answer is not None else FedBalancerError(DIED)
            self.fill()  # which tells it, now and whenever somebody asks again
