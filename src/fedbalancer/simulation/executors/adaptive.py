"""Inline at first, and a pool for whatever turns out to be long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights
from fedbalancer.simulation.executors.inline import InlineExecutor
from fedbalancer.simulation.executors.pool import PoolExecutor

T = TypeVar("T")
PATIENCE_S = 3.0
"""About what a pool takes to start: so nobody waits more than twice as long as with the better of the two."""


class AdaptiveExecutor:
    """Works in this process until that has taken `patience_s`; then starts a pool, and changes over when all its
    workers are ready. Both give the same bytes, so nothing but the time depends on it. If the pool cannot start, as in
    too little memory, everything stays here: nobody has asked for it."""

    def __init__(self, trainer: Trainer, make_pool: Callable[[], PoolExecutor], patience_s: float = PATIENCE_S) -> None:
        self.layout: Layout = trainer.layout
        self._executor: Executor = InlineExecutor(trainer)
        self._make_pool = make_pool
        self._pool: PoolExecutor | None = None
        self._left_s = patience_s

    def initial_weights(self, seed: int) -> Weights:
        return self._executor.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        return self._timed(lambda executor: executor.train(weights, works))

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._timed(lambda executor: executor.losses(weights, clients))

    def evaluate(self, weights: Weights) -> Evaluation:
        return self._timed(lambda executor: executor.evaluate(weights))

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        return self._timed(lambda executor: executor.evaluate_clients(weights, clients))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _timed(self, work: Callable[[Executor], T]) -> T:
        if self._left_s <= 0 and self._executor is not self._pool:
            self._change_over()
        begun = time.monotonic()
        result = work(self._executor)
        self._left_s -= time.monotonic() - begun
        return result

    def _change_over(self) -> None:
        if self._pool is None:
            self._pool = self._make_pool()
        try:
            if self._pool.ready:
                self._executor = self._pool
        except FedBalancerError:
            self._pool.close()
            self._pool, self._left_s = None, math.inf
