"""Executors that train in this process: always, or until a run turns out to be long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights
from fedbalancer.simulation.executors.pool import PoolExecutor

T = TypeVar("T")
PATIENCE_S = 3.0
"""About the time that a pool takes to start, so a run takes at most twice as long as with the better choice."""


class InlineExecutor:
    """Trains clients one after the other in this process.

    Args:
        trainer: Trains and evaluates.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return self.trainer.layout

    def initial_weights(self, seed: int) -> Weights:
        """Return the initial model of a seed."""
        return self.trainer.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        """Train every client from these weights."""
        return [self.trainer.train(weights, work) for work in works]

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult]:
        """Train the clients one by one."""
        return (self.trainer.train(weights, work) for work in works)

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        """Return the loss of every sample of every client."""
        return [self.trainer.losses(weights, client) for client in clients]

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data."""
        return self.trainer.evaluate(weights)

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate a model on the data of every client."""
        return [self.trainer.evaluate_client(weights, client) for client in clients]

    def close(self) -> None:
        """Do nothing: there are no workers."""


def _train_one(weights: Weights, work: ClientWork, executor: Executor) -> list[TrainResult]:
    return executor.train(weights, [work])


class AdaptiveExecutor:
    """Trains in this process at first, and in a pool once the work has taken `patience_s` seconds.

    The pool takes over when all its workers are ready. Both produce the same bytes. If the pool cannot start, for
    example because memory is short, this process continues.

    Args:
        trainer: Trains in this process.
        make_pool: Starts the pool.
        patience_s: Seconds of work after which the pool is started.
    """

    def __init__(self, trainer: Trainer, make_pool: Callable[[], PoolExecutor], patience_s: float = PATIENCE_S) -> None:
        self.layout: Layout = trainer.layout
        self._executor: Executor = InlineExecutor(trainer)
        self._make_pool = make_pool
        self._pool: PoolExecutor | None = None
        self._left_s = patience_s

    def initial_weights(self, seed: int) -> Weights:
        """Return the initial model of a seed."""
        return self._executor.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        """Train every client from these weights."""
        return self._run(lambda executor: executor.train(weights, works))

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult]:
        """Train the clients one by one; the pool may take over between two of them."""
        for number, work in enumerate(works):
            if self._executor is self._pool:
                yield from self._executor.train_each(weights, works[number:])
                return
            yield from self._run(partial(_train_one, weights, work))

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        """Return the loss of every sample of every client."""
        return self._run(lambda executor: executor.losses(weights, clients))

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data."""
        return self._run(lambda executor: executor.evaluate(weights))

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate a model on the data of every client."""
        return self._run(lambda executor: executor.evaluate_clients(weights, clients))

    def close(self) -> None:
        """End the pool, if it was started."""
        if self._pool is not None:
            self._pool.close()

    def _run(self, work: Callable[[Executor], T]) -> T:
        """Run and time one call."""
        if self._left_s <= 0 and self._executor is not self._pool:
            self._switch_to_pool()
        begin_s = time.monotonic()
        result = work(self._executor)
        self._left_s -= time.monotonic() - begin_s
        return result

    def _switch_to_pool(self) -> None:
        if self._pool is None:
            self._pool = self._make_pool()
        try:
            if self._pool.ready:
                self._executor = self._pool
        except FedBalancerError:
            self._pool.close()
            self._pool, self._left_s = None, math.inf
