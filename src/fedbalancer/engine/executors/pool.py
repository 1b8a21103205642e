"""A pool of processes, one thread each.

A client's training depends on nothing but its arguments, so one worker or many give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import DIED, become_worker, packed, process_context, unpacked
from fedbalancer.protocols import Trainer
from fedbalancer.types import ClientWork, Evaluation, FloatArray, Layout, Trained, Weights

_trainer: Trainer | FedBalancerError | None = None


class PoolExecutor:
    """`workers` processes, each with a trainer of its own; work is dealt out so that all finish together."""

    def __init__(self, make_trainer: Callable[[], Trainer], workers: int) -> None:
        self.workers = workers
        self._pool = ProcessPoolExecutor(
            workers, process_context(), initializer=_start, initargs=(packed(make_trainer),)
        )
        self.layout: Layout = self._result(self._submit(_layout))

    def initial_weights(self, seed: int) -> Weights:
        weights: Weights = self._result(self._submit(_call, "initial_weights", seed))
        return weights

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[Trained]:
        return self._spread("train", weights, works, [work.batches for work in works])

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._spread("losses", weights, clients, [1] * len(clients))

    def evaluate(self, weights: Weights) -> Evaluation:
        evaluation: Evaluation = self._result(self._submit(_call, "evaluate", weights))
        return evaluation

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _spread(self, verb: str, weights: Weights, items: Sequence[Any], costs: Sequence[int]) -> list[Any]:
        parts = [part for part in balanced(costs, self.workers) if part]
        futures = [self._submit(_each, verb, weights, [items[i] for i in part]) for part in parts]
        results: list[Any] = [None] * len(items)
        for part, future in zip(parts, futures, strict=True):
            for position, result in zip(part, self._result(future), strict=True):
                results[position] = result
        return results

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            return self._pool.submit(function, *arguments)
        except BrokenProcessPool as error:
            raise FedBalancerError(DIED) from error

    @staticmethod
    def _result(future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise FedBalancerError(DIED) from error


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Positions dealt to parts of about equal cost: the dearest first, each to the cheapest part so far.

    >>> balanced([5, 1, 1, 3], 2)
    [[0], [3, 1, 2]]
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    load = [0] * parts
    for position in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        part = load.index(min(load))
        dealt[part].append(position)
        load[part] += costs[position]
    return dealt


def _start(make_trainer: bytes) -> None:
    global _trainer  # noqa: PLW0603 - the one value a worker process holds
    become_worker()
    try:
        _trainer = unpacked(make_trainer)()
    except FedBalancerError as error:  # told when first asked: an initializer that raises only breaks the pool
        _trainer = error
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _the_trainer() -> Trainer:
    assert _trainer is not None
    if isinstance(_trainer, FedBalancerError):
        raise _trainer
    return _trainer


def _layout() -> Layout:
    return _the_trainer().layout


def _call(verb: str, *arguments: Any) -> Any:
    return getattr(_the_trainer(), verb)(*arguments)


def _each(verb: str, weights: Weights, items: Sequence[Any]) -> list[Any]:
    return [getattr(_the_trainer(), verb)(weights, item) for item in items]
