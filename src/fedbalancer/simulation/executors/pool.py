"""Executors on this machine: in this process, in a pool of processes, or in a pool once a run turns out to be long."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from typing import Any, TypeVar

import cloudpickle

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.processes import LOOK_EVERY_S, Watchdog, become_worker, process_context, without_main
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
from fedbalancer.simulation.executors.distributed import Answer, DistributedExecutor, Worker
from fedbalancer.simulation.executors.shared_memory import SharedValue


class PoolExecutor(DistributedExecutor):
    """Trains in processes of one thread each, which live until `close`.

    Pipes carry requests and answers; shared memory carries their weights and updates.

    Args:
        make_trainer: Makes the trainer of each process.
        workers: Number of processes.
        sizes: Number of samples of each client, to predict costs. Default: all clients are equal.
        gpus: The GPU that each process sees, as in `CUDA_VISIBLE_DEVICES`. Default: all see the same.
    """

    def __init__(
        self,
        make_trainer: Callable[[], Trainer],
        workers: int,
        sizes: Mapping[str, int] | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        self._gpus = gpus
        self._context = process_context(__name__)
        self._make_trainer = SharedValue(make_trainer)
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        self._watchdog = Watchdog()
        super().__init__(workers, sizes)

    def close(self) -> None:
        """End all processes."""
        for worker in list(self._processes):
            self._end(worker)
        self._make_trainer.close()

    def _start(self, worker: int) -> None:
        self._end(worker)
        self._pipes[worker], theirs = self._context.Pipe()
        gpu = self._gpus[worker] if self._gpus else None
        process = self._context.Process(target=serve, args=(theirs, self._make_trainer, gpu), daemon=True)
        with without_main():
            process.start()
        theirs.close()
        self._processes[worker] = process

    def _end(self, worker: int) -> None:
        if worker in self._processes:
            self._pipes.pop(worker).close()
            process = self._processes.pop(worker)
            process.kill()  # it holds no state
            process.join()
            process.close()

    @contextmanager
    def _share(self, weights: Weights | None) -> Iterator[SharedValue]:
        shared = SharedValue(weights)
        try:
            yield shared
        finally:
            shared.close()

    def _ask(self, worker: int, verb: str, items: Sequence[Any], shared: SharedValue) -> None:
        try:
            self._pipes[worker].send_bytes(cloudpickle.dumps((verb, items)))
            shared.send(self._pipes[worker], self._processes[worker].pid)
        except OSError:
            pass  # it has died, which `_answers` reports

    def _answers(self, timeout_s: float | None) -> list[tuple[int, Answer | None]]:
        ready = connection.wait(list(self._pipes.values()), LOOK_EVERY_S if timeout_s is None else timeout_s)
        while not ready and timeout_s is None:
            pids = {worker: process.pid for worker, process in self._processes.items()}
            self._watchdog.look(pids.values(), [pids[worker] for worker in self._busy])  # a killed one is ready below
            ready = connection.wait(list(self._pipes.values()), LOOK_EVERY_S)
        return [(worker, _receive_answer(pipe)) for worker, pipe in list(self._pipes.items()) if pipe in ready]


def _receive_answer(pipe: Any) -> Answer | None:
    try:
        answer: Answer = SharedValue.receive(pipe)
    except (EOFError, OSError):
        return None
    return answer


def serve(pipe: Any, make_trainer: SharedValue, gpu: str | None = None) -> None:
    """Run a worker process until the driver closes the pipe or ends.

    Args:
        pipe: Receives requests and sends answers.
        make_trainer: The function that makes the trainer.
        gpu: The only GPU that the process sees. Default: as the driver.
    """
    become_worker()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # torch has not used a GPU yet
    worker = Worker()
    answer = worker.start(lambda: make_trainer.value)
    make_trainer.close()
    try:
        while True:
            sent = SharedValue(answer)
            sent.send(pipe, os.getppid())
            sent.close()
            del sent, answer  # updates may be large
            verb, items = cloudpickle.loads(pipe.recv_bytes())
            answer = worker.answer(verb, items, SharedValue.receive(pipe))
    except (EOFError, OSError):
        return


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

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> Sequence[TrainResult | DivergedTraining]:
        """Train every client from these weights."""
        return [or_diverged(self.trainer.train, weights, work) for work in works]

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult | DivergedTraining]:
        """Train the clients one by one."""
        return (or_diverged(self.trainer.train, weights, work) for work in works)

    def losses(self, weights: Weights, clients: Sequence[str]) -> Sequence[FloatArray | DivergedTraining]:
        """Return the loss of every sample of every client."""
        return [or_diverged(self.trainer.losses, weights, client) for client in clients]

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data."""
        return self.trainer.evaluate(weights)

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate a model on the data of every client."""
        return [self.trainer.evaluate_client(weights, client) for client in clients]

    def close(self) -> None:
        """Do nothing: there are no workers."""


def _train_one(weights: Weights, work: ClientWork, executor: Executor) -> Sequence[TrainResult | DivergedTraining]:
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

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> Sequence[TrainResult | DivergedTraining]:
        """Train every client from these weights."""
        return self._run(lambda executor: executor.train(weights, works))

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult | DivergedTraining]:
        """Train the clients one by one; the pool may take over between two of them."""
        for number, work in enumerate(works):
            if self._executor is self._pool:
                yield from self._executor.train_each(weights, works[number:])
                return
            yield from self._run(partial(_train_one, weights, work))

    def losses(self, weights: Weights, clients: Sequence[str]) -> Sequence[FloatArray | DivergedTraining]:
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
