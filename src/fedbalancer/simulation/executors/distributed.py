"""Distributes work over several workers and repeats it if a worker dies.

A client's training depends only on its arguments, so results have the same bytes for any number of workers, dead or
alive. The error that is raised does not depend on the workers either: it is that of the first item that fails.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import cloudpickle

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.processes import DIED, TRIES, one_thread_here
from fedbalancer.core.types import (
    ClientWork,
    DivergedTraining,
    Evaluation,
    FloatArray,
    Layout,
    TrainResult,
    Weights,
    or_diverged,
)

CHUNK_BYTES = 128 * 1024**2
"""Maximum bytes of updates in one chunk, which a worker holds until it answers."""
AHEAD = 2
"""Trainings per worker that `train_each` starts before their turn, to keep all workers busy."""
SHARE = 0.5
"""Part of an even share of the remaining work that a worker gets at once; the rest evens out cost errors."""


@runtime_checkable
class EvaluatesInPieces(Protocol):
    """A trainer whose evaluation can be divided into pieces; a piece gives the same result on every worker."""

    def evaluation_pieces(self) -> int:
        """Return the number of pieces."""

    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[Any]:
        """Evaluate these pieces."""

    def combine(self, pieces: Sequence[Any]) -> Evaluation:
        """Combine all pieces, in their order."""


@dataclass(frozen=True)
class Answer:
    """A worker's answer.

    Args:
        values: One value per item; fewer if an item failed.
        error: The error of the item after the last value, if one failed.
    """

    values: list[Any]
    error: Exception | None = None


class Worker:
    """Holds a trainer, on one thread, and answers requests."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None

    def start(self, make_trainer: Callable[[], Callable[[], Trainer]]) -> Answer:
        """Make the trainer.

        Args:
            make_trainer: Returns the function that makes the trainer.

        Returns:
            An answer with the layout of the trainer's model.
        """
        one_thread_here()
        try:
            self._trainer = make_trainer()()
            one_thread_here()  # torch may have been imported only now
            return Answer([self._trainer.layout])
        except Exception as error:
            return Answer([], make_portable(error))

    def answer(self, verb: str, items: Sequence[Any], weights: Weights | None) -> Answer:
        """Process the items up to the first one that fails.

        Args:
            verb: What to do with each item, such as "train".
            items: The items.
            weights: The model.
        """
        assert self._trainer is not None
        values: list[Any] = []
        try:
            for value in _process(self._trainer, verb, items, weights):
                values.append(value)
        except Exception as error:
            return Answer(values, make_portable(error))
        return Answer(values)


def _process(trainer: Any, verb: str, items: Sequence[Any], weights: Weights | None) -> Iterator[Any]:
    if verb in ("train", "losses"):
        yield from (or_diverged(getattr(trainer, verb), weights, item) for item in items)
    elif verb == "evaluate_client":
        yield from (trainer.evaluate_client(weights, item) for item in items)
    elif verb == "evaluate_pieces":
        yield from trainer.evaluate_pieces(weights, items)
    elif verb == "pieces":
        yield trainer.evaluation_pieces() if isinstance(trainer, EvaluatesInPieces) else 0
    elif verb == "evaluate":
        yield trainer.evaluate(weights)
    else:  # initial_weights, combine
        yield from (getattr(trainer, verb)(item) for item in items)


def make_portable(error: Exception) -> Exception:
    """Return an error that can be pickled, with its traceback as a note unless it is a `FedBalancerError`."""
    if not isinstance(error, FedBalancerError):
        error.add_note(f"in a worker:\n{''.join(traceback.format_exception(error))}")
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # pickling may raise anything
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


@dataclass(frozen=True)
class Chunk:
    """Items that a worker gets at once.

    Args:
        positions: Positions in the list of work, ascending.
        lost: Number of workers that died while working on it.
    """

    positions: tuple[int, ...]
    lost: int = 0

    def before(self, position: int) -> Chunk:
        """Return the part before a position."""
        return replace(self, positions=tuple(each for each in self.positions if each < position))


def cut_chunks(costs: Sequence[float], workers: int, max_items: int | None = None) -> list[Chunk]:
    """Divide work into chunks, in the order in which free workers take them.

    This is guided self-scheduling (C. Polychronopoulos and D. Kuck, 1987) for work of unequal cost. The most expensive
    items come first, and a chunk costs at most half an even share of the remaining work. So there are few chunks, and
    the last ones are small.

    Args:
        costs: Predicted cost of each item.
        workers: Number of workers.
        max_items: Maximum number of items in a chunk. Default: no limit.

    >>> [chunk.positions for chunk in cut_chunks([5, 1, 1, 3], workers=2)]
    [(0,), (3,), (1,), (2,)]
    """
    left = sorted(range(len(costs)), key=lambda position: (costs[position], -position))
    cost_left, chunks = float(sum(costs)), []
    while left:
        share = SHARE * cost_left / workers
        taken = [left.pop()]
        cost = costs[taken[0]]
        while left and (max_items is None or len(taken) < max_items) and cost + costs[left[-1]] <= share:
            cost += costs[left[-1]]
            taken.append(left.pop())
        cost_left -= cost
        chunks.append(Chunk(tuple(sorted(taken))))
    return chunks


def training_cost(work: ClientWork) -> float:
    """Predict the cost of a training: the samples that it visits, plus one batch of overhead.

    >>> import numpy as np
    >>> training_cost(ClientWork("ann", np.arange(25), 6, 10, 0.1, 0.0, None, 0))
    60.0
    """
    mean_batch = min(len(work.indices) / work.per_epoch, work.batch_size)
    return float(work.batches * mean_batch + work.batch_size)


class DistributedExecutor(ABC):
    """An executor over workers that are numbered from 0 and process one chunk at a time.

    A subclass defines one kind of worker: how it starts and ends, and how messages travel. Its own state must be ready
    before it calls `__init__` of this class, which starts the workers.

    Args:
        workers: Number of workers.
        sizes: Number of samples of each client, to predict costs. Default: all clients are equal.
    """

    def __init__(self, workers: int, sizes: Mapping[str, int] | None = None) -> None:
        self.workers = workers
        self._sizes = sizes or {}
        self._idle: list[int] = []
        self._busy: dict[int, Chunk] = {}
        self._starting: dict[int, int] = {}  # number of starts of each worker without a trainer
        self._absent = list(range(workers))
        self._start_error: Exception | None = None
        self._layout: Layout | None = None
        self._pieces: int | None = None
        self._start_absent()

    @abstractmethod
    def _start(self, worker: int) -> None:
        """Start a worker, replacing an earlier one of this number; its first answer is the layout."""

    @abstractmethod
    def _end(self, worker: int) -> None:
        """End a worker, even if it is busy."""

    @abstractmethod
    def _share(self, weights: Weights | None) -> AbstractContextManager[Any]:
        """Make the weights readable by all workers."""

    @abstractmethod
    def _ask(self, worker: int, verb: str, items: Sequence[Any], shared: Any) -> None:
        """Send a request; `_answers` returns the answer."""

    @abstractmethod
    def _answers(self, timeout_s: float | None) -> Iterable[tuple[int, Answer | None]]:
        """Wait for at least one answer; return all that have arrived, None for a worker that died."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        while self._layout is None:
            self._receive_starts(None)
        return self._layout

    @property
    def ready(self) -> bool:
        """Whether all workers have their trainer."""
        self._receive_starts(0.0)
        return not self._starting

    def initial_weights(self, seed: int) -> Weights:
        """Return the initial model of a seed."""
        weights: Weights = self._call("initial_weights", None, seed)
        return weights

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult | DivergedTraining]:
        """Train every client from these weights."""
        return self._map("train", weights, works, [training_cost(work) for work in works])

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult | DivergedTraining]:
        """Train the clients in their order; at most `AHEAD` results per worker wait for an earlier one."""
        self._start_absent()
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        chunks: list[Chunk] = []
        offered = 0
        with self._share(weights) as shared, self._end_busy_workers():
            for position in range(len(works)):
                most = min(len(works), position + AHEAD * self.workers)
                chunks += [Chunk((each,)) for each in range(offered, most)]
                offered = most
                self._assign(chunks, "train", works, shared)
                while position not in results and position not in errors:
                    self._collect(chunks, results, errors)
                    self._assign(chunks, "train", works, shared)  # before the caller spends time on a result
                if position in errors:
                    raise errors[position]
                yield results.pop(position)

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray | DivergedTraining]:
        """Return the loss of every sample of every client."""
        return self._map("losses", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate a model on the data of every client."""
        return self._map("evaluate_client", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data, in pieces on all workers if the trainer supports it."""
        if self._pieces is None:
            self._pieces = self._call("pieces", None, None)
        if self._pieces and self.workers > 1:
            pieces = self._map("evaluate_pieces", weights, range(self._pieces), [1] * self._pieces)
            evaluation: Evaluation = self._call("combine", None, pieces)
        else:
            evaluation = self._call("evaluate", weights, None)
        return evaluation

    def _call(self, verb: str, weights: Weights | None, item: Any) -> Any:
        return self._map(verb, weights, [item], [1])[0]

    def _map(self, verb: str, weights: Weights | None, items: Sequence[Any], costs: Sequence[float]) -> list[Any]:
        """Return the results of `verb` for all items, in their order."""
        self._start_absent()
        chunks = cut_chunks(costs, self.workers, _max_clients(weights) if verb == "train" else None)
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        with self._share(weights) as shared, self._end_busy_workers():
            while self._assign(chunks, verb, items, shared):
                self._collect(chunks, results, errors)
                if errors:  # only an earlier error could still matter
                    chunks = [part for chunk in chunks if (part := chunk.before(min(errors))).positions]
        if errors:
            raise errors[min(errors)]
        return [results[position] for position in range(len(items))]

    def _collect(self, chunks: list[Chunk], results: dict[int, Any], errors: dict[int, Exception]) -> None:
        """Wait for answers and note them by position. The chunk of a dead worker is added again."""
        for chunk, answer in self._receive(None):
            if answer is None:
                chunks.insert(0, _count_loss(chunk))
                continue
            results.update(zip(chunk.positions, answer.values, strict=False))
            if answer.error is not None:
                errors[chunk.positions[len(answer.values)]] = answer.error

    def _assign(self, chunks: list[Chunk], verb: str, items: Sequence[Any], shared: Any) -> bool:
        """Assign chunks to idle workers; return whether anything is left to wait for."""
        while self._idle and chunks:
            worker, chunk = self._idle.pop(0), chunks.pop(0)
            self._busy[worker] = chunk
            self._ask(worker, verb, [items[position] for position in chunk.positions], shared)
        return bool(self._busy or chunks)

    def _receive(self, timeout_s: float | None) -> Iterator[tuple[Chunk, Answer | None]]:
        """Yield the chunks that were answered, or None as the answer if their worker died and was replaced."""
        for worker, answer in self._answers(timeout_s):
            if worker in self._starting:
                self._finish_start(worker, answer)
                continue
            chunk = self._busy.pop(worker, None)
            if answer is not None:
                self._idle.append(worker)
            else:
                self._idle = [other for other in self._idle if other != worker]
                self._restart(worker)
            if chunk is not None:
                yield chunk, answer

    def _receive_starts(self, timeout_s: float | None) -> None:
        """Register workers that have made their trainer, while no worker is busy."""
        self._start_absent()
        for chunk, _ in self._receive(timeout_s):
            raise AssertionError(f"unexpected answer for {chunk}")

    @contextmanager
    def _end_busy_workers(self) -> Iterator[None]:
        """On exit, end the workers that are still busy with work that was interrupted."""
        try:
            yield
        finally:
            for worker in list(self._busy):
                del self._busy[worker]
                self._end(worker)
                self._absent.append(worker)

    def _start_absent(self) -> None:
        """Start the missing workers; raises if workers cannot start."""
        if self._start_error is not None:
            raise self._start_error
        while self._absent:
            self._restart(self._absent.pop())

    def _restart(self, worker: int) -> None:
        self._starting[worker] = self._starting.get(worker, 0) + 1
        self._start(worker)

    def _finish_start(self, worker: int, answer: Answer | None) -> None:
        if answer is not None and answer.error is None:
            del self._starting[worker]
            self._layout = answer.values[0]
            self._idle.append(worker)
        elif answer is None and self._starting[worker] < TRIES:
            self._restart(worker)
        else:
            self._start_error = answer.error if answer is not None else FedBalancerError(DIED)
            self._start_absent()  # raises the error, now and on every later request


def _max_clients(weights: Weights | None) -> int | None:
    """Maximum number of clients in one chunk."""
    return max(CHUNK_BYTES // weights.nbytes, 1) if weights is not None and weights.nbytes else None


def _count_loss(chunk: Chunk) -> Chunk:
    """Count a dead worker; raise if too many died over the same chunk."""
    if chunk.lost + 1 >= TRIES:
        raise FedBalancerError(DIED)
    return replace(chunk, lost=chunk.lost + 1)
