"""A pool of processes on this machine, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from typing import Any

import numpy as np

from fedbalancer.engine.executors import blocks
from fedbalancer.engine.executors.chunks import Chunk
from fedbalancer.engine.executors.parcel import Parcel
from fedbalancer.engine.executors.spread import SpreadExecutor
from fedbalancer.engine.executors.worker import Answer, Worker
from fedbalancer.processes import become_worker, packed, process_context, unpacked
from fedbalancer.protocols import Trainer
from fedbalancer.types import Trained, Weights


class PoolExecutor(SpreadExecutor):
    """`workers` processes, each with a trainer of its own, that live until `close`."""

    def __init__(
        self, make_trainer: Callable[[], Trainer], workers: int, sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(Processes(make_trainer, workers), sizes)


@dataclass(frozen=True)
class Request:
    """What a worker is asked. Large weights come as a block of so many values, and updates go into a block, each at
    its position; the blocks' descriptors follow the request."""

    verb: str
    items: Sequence[Any]
    positions: tuple[int, ...]
    weights: Weights | int | None
    updates: bool


@dataclass(frozen=True, eq=False)
class Shared:
    """What all workers read and where they write in one spread of work."""

    weights: Weights | int | None
    updates: Weights | None
    descriptors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class InBlock:
    """A result whose update lies in the block."""

    trained: Trained


class Processes:
    """A `Crew` of processes. Weights and updates travel through shared memory; the pipes carry the rest."""

    def __init__(self, make_trainer: Callable[[], Trainer], size: int) -> None:
        self.size = size
        self._context = process_context()
        self._parcel = Parcel(make_trainer)
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        self._asked: dict[int, tuple[Chunk, Shared]] = {}

    def start(self, place: int) -> None:
        self.end(place)
        self._pipes[place], theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._parcel), daemon=True)
        process.start()
        theirs.close()
        self._processes[place] = process

    def end(self, place: int) -> None:
        if place in self._processes:
            self._pipes.pop(place).close()
            process = self._processes.pop(place)
            process.kill()  # it holds nothing that anyone would miss
            process.join()
            process.close()

    @contextmanager
    def shared(self, weights: Weights | None, updates: int) -> Iterator[Shared]:
        shared = _shared(weights, updates)
        try:
            yield shared
        finally:
            self._asked.clear()
            for descriptor in shared.descriptors:
                os.close(descriptor)

    def ask(self, place: int, verb: str, chunk: Chunk, items: Sequence[Any], shared: Shared) -> None:
        self._asked[place] = (chunk, shared)
        request = Request(verb, items, chunk.positions, shared.weights, shared.updates is not None)
        try:
            self._pipes[place].send_bytes(packed(request))
            for descriptor in shared.descriptors:
                reduction.send_handle(self._pipes[place], descriptor, self._processes[place].pid)
        except OSError:
            pass  # it has died, which `answers` will tell

    def answers(self, timeout_s: float | None) -> list[tuple[int, Answer | None]]:
        ready = connection.wait(list(self._pipes.values()), timeout_s)
        return [(place, self._answer(place)) for place, pipe in list(self._pipes.items()) if pipe in ready]

    def close(self) -> None:
        for place in list(self._processes):
            self.end(place)
        self._parcel.close()

    def _answer(self, place: int) -> Answer | None:
        try:
            answer: Answer = unpacked(self._pipes[place].recv_bytes())
        except (EOFError, OSError):
            return None
        chunk, shared = self._asked.pop(place, (Chunk(()), None))
        if shared is None or shared.updates is None:
            return answer
        pairs = zip(chunk.positions, answer.values, strict=False)
        return replace(answer, values=[_taken_out(value, shared.updates[position]) for position, value in pairs])


def _shared(weights: Weights | None, updates: int) -> Shared:
    """In blocks if the weights are large and there are blocks; else everything travels in the messages."""
    if weights is None or weights.nbytes < blocks.SMALL_BYTES:
        return Shared(weights, None, ())
    ours = blocks.make_block(weights.nbytes)
    if ours is None:
        return Shared(weights, None, ())
    blocks.write(ours, weights)
    theirs = blocks.make_block(updates * weights.nbytes) if updates else None
    if theirs is None:
        return Shared(len(weights), None, (ours,))
    room = blocks.mapped(theirs, updates * len(weights)).reshape(updates, len(weights))
    return Shared(len(weights), room, (ours, theirs))


def _taken_out(value: Trained | InBlock, update: Weights) -> Trained:
    return replace(value.trained, update=update) if isinstance(value, InBlock) else value


def _serve(pipe: Any, parcel: Parcel) -> None:
    """The life of a worker process: it ends when the driver closes the pipe or is gone."""
    become_worker()
    worker = Worker()
    answer = worker.start(lambda: parcel.value)
    parcel.close()
    while _sent(pipe, answer):
        try:
            request: Request = unpacked(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        answer = _done(worker, request, pipe)


def _sent(pipe: Any, answer: Answer) -> bool:
    try:
        pipe.send_bytes(packed(answer))
    except OSError:
        return False
    return True


def _done(worker: Worker, request: Request, pipe: Any) -> Answer:
    weights = request.weights
    if isinstance(weights, int):
        descriptor = reduction.recv_handle(pipe)
        weights = blocks.mapped(descriptor, weights, own=True)
        os.close(descriptor)
    updates = reduction.recv_handle(pipe) if request.updates else None
    answer = worker.answer(request.verb, request.items, weights)
    if updates is None:
        return answer
    try:
        pairs = zip(request.positions, answer.values, strict=False)
        return replace(answer, values=[_put_in(value, updates, position, weights) for position, value in pairs])
    finally:
        os.close(updates)


def _put_in(value: Trained, block: int, position: int, weights: Weights | None) -> Trained | InBlock:
    assert weights is not None
    if value.update.dtype != weights.dtype or value.update.shape != weights.shape:
        return value
    blocks.write(block, value.update, position * weights.nbytes)
    return InBlock(replace(value, update=np.empty(0, dtype=np.float32)))
