"""A pool of processes on this machine, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from typing import Any

import cloudpickle

from fedbalancer.engine.executors import shared_memory
from fedbalancer.engine.executors.chunks import Chunk
from fedbalancer.engine.executors.distributed import DistributedExecutor
from fedbalancer.engine.executors.pool_worker import InBlock, Request, serve
from fedbalancer.engine.executors.worker import Answer
from fedbalancer.processes import process_context
from fedbalancer.protocols import Trainer
from fedbalancer.types import Trained, Weights


@dataclass(frozen=True, eq=False)
class Shared:
    """What all workers read and where they write while one list of work is done."""

    weights: Weights | int | None
    updates: Weights | None = None
    descriptors: tuple[int, ...] = ()


class PoolExecutor(DistributedExecutor):
    """`workers` processes, each with a trainer of its own, that live until `close`. Weights and updates travel through
    shared memory; pipes carry the rest."""

    def __init__(
        self, make_trainer: Callable[[], Trainer], workers: int, sizes: Mapping[str, int] | None = None
    ) -> None:
        self._context = process_context()
        self._make_trainer = shared_memory.SharedValue(make_trainer)
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        self._asked: dict[int, tuple[Chunk, Shared]] = {}
        super().__init__(workers, sizes)

    def close(self) -> None:
        for worker in list(self._processes):
            self._end(worker)
        self._make_trainer.close()

    def _start(self, worker: int) -> None:
        self._end(worker)
        self._pipes[worker], theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self._make_trainer), daemon=True)
        process.start()
        theirs.close()
        self._processes[worker] = process

    def _end(self, worker: int) -> None:
        if worker in self._processes:
            self._pipes.pop(worker).close()
            process = self._processes.pop(worker)
            process.kill()  # it holds nothing that anyone would miss
            process.join()
            process.close()

    @contextmanager
    def _shared(self, weights: Weights | None, updates: int) -> Iterator[Shared]:
        shared = _in_blocks(weights, updates)
        try:
            yield shared
        finally:
            self._asked.clear()
            for descriptor in shared.descriptors:
                os.close(descriptor)

    def _ask(self, worker: int, verb: str, chunk: Chunk, items: Sequence[Any], shared: Shared) -> None:
        self._asked[worker] = (chunk, shared)
        request = Request(verb, items, chunk.positions, shared.weights, shared.updates is not None)
        try:
            self._pipes[worker].send_bytes(cloudpickle.dumps(request))
            for descriptor in shared.descriptors:
                reduction.send_handle(self._pipes[worker], descriptor, self._processes[worker].pid)
        except OSError:
            pass  # it has died, which `_answers` will tell

    def _answers(self, timeout_s: float | None) -> list[tuple[int, Answer | None]]:
        ready = connection.wait(list(self._pipes.values()), timeout_s)
        return [(worker, self._answer(worker)) for worker, pipe in list(self._pipes.items()) if pipe in ready]

    def _answer(self, worker: int) -> Answer | None:
        try:
            answer: Answer = cloudpickle.loads(self._pipes[worker].recv_bytes())
        except (EOFError, OSError):
            return None
        chunk, shared = self._asked.pop(worker, (Chunk(()), None))
        if shared is None or shared.updates is None:
            return answer
        pairs = zip(chunk.positions, answer.values, strict=False)
        return replace(answer, values=[_taken_out(value, shared.updates[position]) for position, value in pairs])


def _in_blocks(weights: Weights | None, updates: int) -> Shared:
    """In shared memory if the weights are large and there is any; else everything travels in the messages."""
    if weights is None or weights.nbytes < shared_memory.SMALL_BYTES:
        return Shared(weights)
    ours = shared_memory.make_block(weights.nbytes)
    if ours is None:
        return Shared(weights)
    shared_memory.write(ours, weights)
    theirs = shared_memory.make_block(updates * weights.nbytes) if updates else None
    if theirs is None:
        return Shared(len(weights), None, (ours,))
    try:
        room = shared_memory.mapped(theirs, updates * len(weights)).reshape(updates, len(weights))
    except OSError:  # not even addresses for so much
        os.close(theirs)
        return Shared(len(weights), None, (ours,))
    return Shared(len(weights), room, (ours, theirs))


def _taken_out(value: Trained | InBlock, update: Weights) -> Trained:
    return replace(value.trained, update=update) if isinstance(value, InBlock) else value
