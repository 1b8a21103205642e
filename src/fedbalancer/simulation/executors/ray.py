"""Ray actors, one a slot: the same work on this machine or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.processes import usable_cores
from fedbalancer.core.types import TrainResult, Weights
from fedbalancer.simulation.executors.distributed import DistributedExecutor
from fedbalancer.simulation.executors.ray_session import RaySession, warn_of_unlike_nodes
from fedbalancer.simulation.executors.worker import Answer, Worker

START_S = 300.0
"""How long Ray may take to give a first worker, which has to load torch: minutes where the machines are busy."""


class RayExecutor(DistributedExecutor):
    """`workers` actors of one CPU each, each with a trainer of its own, that live until `close`.

    Without an `address` a Ray starts on this machine and ends with this process; "auto" is the cluster that this
    machine belongs to. As many workers as there is room for, unless told; with `gpus` each takes so many of them too.
    Weights are put into Ray's store when they change, once for all chunks of a round.
    """

    def __init__(
        self,
        make_trainer: Callable[[], Trainer],
        workers: int | None = None,
        sizes: Mapping[str, int] | None = None,
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._session = RaySession(address, workers if workers is not None else usable_cores())
        self._ray = self._session.ray
        warn_of_unlike_nodes(self._ray)
        self._actor = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(Actor)
        self._make_trainer = self._ray.put(make_trainer)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._weights: Any = None
        super().__init__(workers if workers is not None else self._session.room(1.0, gpus), sizes)

    def close(self) -> None:
        for worker in list(self._actors):
            self._end(worker)
        self._make_trainer = self._weights = None
        self._session.close()

    def _start(self, worker: int) -> None:
        self._end(worker)
        self._actors[worker] = actor = self._actor.remote()
        self._pending[actor.start.remote([self._make_trainer], sys.path)] = worker

    def _end(self, worker: int) -> None:
        self._pending = {answer: other for answer, other in self._pending.items() if other != worker}
        if worker in self._actors:
            self._ray.kill(self._actors.pop(worker))

    @contextmanager
    def _shared(self, weights: Weights | None) -> Iterator[Any]:
        if weights is None:
            yield None
            return
        if self._weights is None or not _same(self._ray.get(self._weights), weights):
            self._weights = self._ray.put(weights)
        yield self._weights

    def _ask(self, worker: int, verb: str, items: Sequence[Any], shared: Any) -> None:
        self._pending[self._actors[worker].answer.remote(verb, cloudpickle.dumps(items), shared)] = worker

    def _answers(self, timeout_s: float | None) -> list[tuple[int, Answer | None]]:
        if not self._pending:
            return []
        only_starts = self._starting.keys() >= set(self._pending.values())
        patience_s = START_S if timeout_s is None and only_starts else timeout_s
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=patience_s)
        if not ready and timeout_s is None:
            raise FedBalancerError(f"Ray gave no worker within {START_S:g} s; {self._session.describe()}")
        return [(self._pending.pop(answer), self._taken(answer)) for answer in ready]

    def _taken(self, answer: Any) -> Answer | None:
        try:
            taken: Answer = self._ray.get(answer)
        except self._ray.exceptions.RayError:
            return None
        return replace(taken, values=[_own(value) for value in taken.values])


class Actor:
    """A `Worker` in a process of Ray's."""

    def __init__(self) -> None:
        self._worker = Worker()

    def start(self, make_trainer: list[Any], path: list[str]) -> Answer:
        """Like the workers of a pool, it finds modules where the driver does."""
        import ray

        sys.path.extend(place for place in path if place not in sys.path)
        return self._worker.start(lambda: ray.get(make_trainer[0]))

    def answer(self, verb: str, items: bytes, weights: Weights | None) -> Answer:
        return self._worker.answer(verb, cloudpickle.loads(items), weights)


def _same(one: Weights, other: Weights) -> bool:
    """Equal to the last bit."""
    return one.shape == other.shape and np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _own(value: Any) -> Any:
    """The value in memory of this process: what Ray gives is read-only and keeps its place in Ray's store."""
    if isinstance(value, TrainResult):
        return replace(value, update=_own(value.update), seen=_own(value.seen), losses=_own(value.losses))
    return value.copy() if isinstance(value, np.ndarray) else value
