"""Work spread over several workers: given to whoever is free, and done again where a worker died.

A client's training depends on nothing but its arguments, so one worker or many, dead ones or none, give the same
bytes. Which error is raised does not depend on the workers either: that of the first item that fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import DIED, TRIES
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights
from fedbalancer.simulation.executors.chunks import Chunk, cut, training_cost
from fedbalancer.simulation.executors.worker import Answer

CHUNK_BYTES = 128 * 1024**2
"""Updates that a worker holds before it hands them over, at most."""


class DistributedExecutor(ABC):
    """An executor over workers that are numbered from 0 and asked for one chunk at a time.

    `sizes` are the clients' samples, where they are known. A subclass is one kind of worker: it says how they start
    and end, and how questions and answers travel. It is ready for both before it calls `__init__` of this class.
    """

    def __init__(self, workers: int, sizes: Mapping[str, int] | None = None) -> None:
        self.workers = workers
        self._sizes = sizes or {}
        self._idle: list[int] = []
        self._busy: dict[int, Chunk] = {}
        self._starting: dict[int, int] = {}  # how often each was started that has no trainer yet
        self._absent = list(range(workers))
        self._cannot_start: Exception | None = None
        self._layout: Layout | None = None
        self._pieces: int | None = None
        self._start_absent()

    @abstractmethod
    def _start(self, worker: int) -> None:
        """Start a worker in the place of the one that had this number; its first answer is the layout."""

    @abstractmethod
    def _end(self, worker: int) -> None:
        """End a worker, whatever it is doing."""

    @abstractmethod
    def _shared(self, weights: Weights | None) -> AbstractContextManager[Any]:
        """The weights where all workers can read them."""

    @abstractmethod
    def _ask(self, worker: int, verb: str, items: Sequence[Any], shared: Any) -> None:
        """Send a question; `_answers` gives the answer."""

    @abstractmethod
    def _answers(self, timeout_s: float | None) -> Iterable[tuple[int, Answer | None]]:
        """The workers that have answered, waiting for at least one of them; None for one that died."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

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

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        return self._all("train", weights, works, [training_cost(work) for work in works])

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._all("losses", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        return self._all("evaluate_client", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate(self, weights: Weights) -> Evaluation:
        """In pieces on all workers, where the trainer can; else by one of them."""
        if self._pieces is None:
            self._pieces = self._one("pieces", None, None)
        if self._pieces and self.workers > 1:
            pieces = self._all("evaluate_pieces", weights, range(self._pieces), [1] * self._pieces)
            evaluation: Evaluation = self._one("combine", None, pieces)
        else:
            evaluation = self._one("evaluate", weights, None)
        return evaluation

    def _one(self, verb: str, weights: Weights | None, item: Any) -> Any:
        return self._all(verb, weights, [item], [1])[0]

    def _all(self, verb: str, weights: Weights | None, items: Sequence[Any], costs: Sequence[float]) -> list[Any]:
        """What `verb` gives for every item, in their order."""
        self._start_absent()
        chunks = cut(costs, self.workers, _most(weights) if verb == "train" else None)
        results: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        with self._shared(weights) as shared, self._nobody_left_busy():
            while self._give_out(chunks, verb, items, shared):
                for chunk, answer in self._hear(None):
                    if answer is None:
                        chunks.insert(0, _once_more(chunk))
                        continue
                    results.update(zip(chunk.positions, answer.values, strict=False))
                    if answer.error is not None:
                        failed[chunk.positions[len(answer.values)]] = answer.error
                if failed:  # only an earlier failure could still matter
                    chunks = [part for chunk in chunks if (part := chunk.before(min(failed))).positions]
        if failed:
            raise failed[min(failed)]
        return [results[position] for position in range(len(items))]

    def _give_out(self, chunks: list[Chunk], verb: str, items: Sequence[Any], shared: Any) -> bool:
        """Give chunks to idle workers; whether there is anything left to wait for."""
        while self._idle and chunks:
            worker, chunk = self._idle.pop(0), chunks.pop(0)
            self._busy[worker] = chunk
            self._ask(worker, verb, [items[position] for position in chunk.positions], shared)
        return bool(self._busy or chunks)

    def _hear(self, timeout_s: float | None) -> Iterator[tuple[Chunk, Answer | None]]:
        """Chunks that were answered, or whose worker died (None) and was replaced."""
        for worker, answer in self._answers(timeout_s):
            if worker in self._starting:
                self._started(worker, answer)
                continue
            chunk = self._busy.pop(worker, None)
            if answer is not None:
                self._idle.append(worker)
            else:
                self._idle = [other for other in self._idle if other != worker]
                self._start_anew(worker)
            if chunk is not None:
                yield chunk, answer

    def _hear_starts(self, timeout_s: float | None) -> None:
        """Take note of workers that have made their trainer, while nobody is busy."""
        self._start_absent()
        for chunk, _ in self._hear(timeout_s):
            raise AssertionError(f"nobody was asked for {chunk}")

    @contextmanager
    def _nobody_left_busy(self) -> Iterator[None]:
        """If the work is broken off, end the workers that are still busy with it."""
        try:
            yield
        finally:
            for worker in list(self._busy):
                del self._busy[worker]
                self._end(worker)
                self._absent.append(worker)

    def _start_absent(self) -> None:
        """Start the workers that are missing; raises if workers cannot even start."""
        if self._cannot_start is not None:
            raise self._cannot_start
        while self._absent:
            self._start_anew(self._absent.pop())

    def _start_anew(self, worker: int) -> None:
        self._starting[worker] = self._starting.get(worker, 0) + 1
        self._start(worker)

    def _started(self, worker: int, answer: Answer | None) -> None:
        if answer is not None and answer.error is None:
            del self._starting[worker]
            self._layout = answer.values[0]
            self._idle.append(worker)
        elif answer is None and self._starting[worker] < TRIES:
            self._start_anew(worker)
        else:
            self._cannot_start = answer.error if answer is not None else FedBalancerError(DIED)
            self._start_absent()  # which raises it, now and whenever somebody asks again


def _most(weights: Weights | None) -> int | None:
    """Clients in one chunk, at most."""
    return max(CHUNK_BYTES // weights.nbytes, 1) if weights is not None and weights.nbytes else None


def _once_more(chunk: Chunk) -> Chunk:
    if chunk.lost + 1 >= TRIES:
        raise FedBalancerError(DIED)
    return replace(chunk, lost=chunk.lost + 1)
