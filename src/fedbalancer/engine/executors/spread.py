"""Work spread over workers: dealt to whoever is free, and done again where a worker died.

A client's training depends on nothing but its arguments, so one worker or many, dead ones or none, give the same
bytes. Which error is told does not depend on the workers either: that of the first item that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from fedbalancer.engine.executors.chunks import Chunk, Deal, training_cost
from fedbalancer.engine.executors.worker import Answer
from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import DIED
from fedbalancer.types import ClientWork, Evaluation, FloatArray, Layout, Trained, Weights

TRIES = 3
"""Workers that may die over one chunk, or at their start, before it is an error."""

CHUNK_BYTES = 128 * 1024**2
"""Updates that a worker holds before it hands them over, at most."""


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


class SpreadExecutor:
    """An `Executor` over any crew. `sizes` are the clients' samples, where they are known."""

    def __init__(self, crew: Crew, sizes: Mapping[str, int] | None = None) -> None:
        self.workers = crew.size
        self._crew = crew
        self._sizes = sizes or {}
        self._idle: list[int] = []
        self._busy: dict[int, Chunk] = {}
        self._starting: dict[int, int] = {}
        self._vacant: list[int] = list(range(crew.size))
        self._layout: Layout | None = None
        self._pieces: int | None = None
        self._broken: Exception | None = None
        self._fill()

    @property
    def layout(self) -> Layout:
        while self._layout is None:
            self._hear_starts(None)
        return self._layout

    @property
    def ready(self) -> bool:
        """Whether all workers have their trainer."""
        self._hear_starts(0.0)
        return not self._starting

    def initial_weights(self, seed: int) -> Weights:
        weights: Weights = self._one("initial_weights", None, seed)
        return weights

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[Trained]:
        return self._spread("train", weights, works, [training_cost(work) for work in works])

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._spread("losses", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate(self, weights: Weights) -> Evaluation:
        """In pieces on all workers, where the trainer can; else by one of them."""
        if self._pieces is None:
            self._pieces = self._one("pieces", None, None)
        if self._pieces and self.workers > 1:
            pieces = self._spread("evaluate_pieces", weights, range(self._pieces), [1] * self._pieces)
            evaluation: Evaluation = self._one("combine", None, pieces)
        else:
            evaluation = self._one("evaluate", weights, None)
        return evaluation

    def close(self) -> None:
        self._crew.close()

    def _one(self, verb: str, weights: Weights | None, item: Any) -> Any:
        return self._spread(verb, weights, [item], [1])[0]

    def _spread(self, verb: str, weights: Weights | None, items: Sequence[Any], costs: Sequence[float]) -> list[Any]:
        self._fill()
        updates = len(items) if verb == "train" else 0
        deal = Deal(costs, self.workers, _most(weights) if updates else None)
        results: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        with self._crew.shared(weights, updates) as shared, self._nobody_left_busy():
            while self._give_out(deal, verb, items, shared):
                for chunk, answer in self._hear(None):
                    if answer is None:
                        deal.put_back(self._once_more(chunk))
                        continue
                    results.update(zip(chunk.positions, answer.values, strict=False))
                    if answer.error is not None:
                        failed[chunk.positions[len(answer.values)]] = answer.error
                        deal.drop_after(min(failed))
        if failed:
            raise failed[min(failed)]
        return [results[position] for position in range(len(items))]

    def _give_out(self, deal: Deal, verb: str, items: Sequence[Any], shared: Any) -> bool:
        """Chunks to the idle; whether there is anything left to wait for."""
        while self._idle and (chunk := deal.take()) is not None:
            place = self._idle.pop(0)
            self._busy[place] = chunk
            self._crew.ask(place, verb, chunk, [items[position] for position in chunk.positions], shared)
        return bool(self._busy) or not deal.is_empty

    def _hear(self, timeout_s: float | None) -> Iterator[tuple[Chunk, Answer | None]]:
        """Chunks that were answered, or whose worker died (None)."""
        for place, answer in self._crew.answers(timeout_s):
            if place in self._starting:
                self._started(place, answer)
                continue
            chunk = self._busy.pop(place, None)
            if answer is not None:
                self._idle.append(place)
            else:
                self._idle = [other for other in self._idle if other != place]
                self._start(place)
            if chunk is not None:
                yield chunk, answer

    def _hear_starts(self, timeout_s: float | None) -> None:
        self._fill()
        for _ in self._hear(timeout_s):
            raise AssertionError("nobody was asked anything")

    def _fill(self) -> None:
        """A worker in every place."""
        if self._broken is not None:
            raise self._broken
        while self._vacant:
            self._start(self._vacant.pop())

    def _start(self, place: int) -> None:
        self._starting[place] = self._starting.get(place, 0) + 1
        self._crew.start(place)

    def _started(self, place: int, answer: Answer | None) -> None:
        if answer is not None and answer.error is None:
            del self._starting[place]
            self._layout = answer.values[0]
            self._idle.append(place)
        elif answer is None and self._starting[place] < TRIES:
            self._start(place)
        else:
            self._broken = answer.error if answer is not None else FedBalancerError(DIED)
            self._fill()  # which tells it, now and whenever somebody asks again

    def _once_more(self, chunk: Chunk) -> Chunk:
        if chunk.lost + 1 >= TRIES:
            raise FedBalancerError(DIED)
        return replace(chunk, lost=chunk.lost + 1)

    @contextmanager
    def _nobody_left_busy(self) -> Iterator[None]:
        """If the work is broken off, those who are still at it are sent away."""
        try:
            yield
        finally:
            for place in list(self._busy):
                del self._busy[place]
                self._crew.end(place)
                self._vacant.append(place)


def _most(weights: Weights | None) -> int | None:
    """Clients in one chunk, at most."""
    return max(CHUNK_BYTES // weights.nbytes, 1) if weights is not None and weights.nbytes else None
