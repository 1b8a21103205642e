"""The executor that trains in a pool of processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

import cloudpickle

from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.processes import LOOK_EVERY_S, Watchdog, become_worker, process_context, without_main
from fedbalancer.core.types import Weights
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
