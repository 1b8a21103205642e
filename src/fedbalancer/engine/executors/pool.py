"""A pool of processes on this machine, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from typing import Any

from fedbalancer.engine.executors import blocks
from fedbalancer.engine.executors.chunks import Chunk
from fedbalancer.engine.executors.parcel import Parcel
from fedbalancer.engine.executors.pool_process import InBlock, Request, serve
from fedbalancer.engine.executors.spread import SpreadExecutor
from fedbalancer.engine.executors.worker import Answer
from fedbalancer.processes import packed, process_context, unpacked
from fedbalancer.protocols import Trainer
from fedbalancer.types import Trained, Weights


class PoolExecutor(SpreadExecutor):
    """`workers` processes, each with a trainer of its own, that live until `close`."""

    def __init__(
        self, make_trainer: Callable[[], Trainer], workers: int, sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(Processes(make_trainer, workers), sizes)


@dataclass(frozen=True, eq=False)
class Shared:
    """What all workers read and where they write in one spread of work."""

    weights: Weights | int | None
    updates: Weights | None
    descriptors: tuple[int, ...]


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
        process = self._context.Process(target=serve, args=(theirs, self._parcel), daemon=True)
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
    try:
        room = blocks.mapped(theirs, updates * len(weights)).reshape(updates, len(weights))
    except OSError:  # not even addresses for so much
        os.close(theirs)
        return Shared(len(weights), None, (ours,))
    return Shared(len(weights), room, (ours, theirs))


def _taken_out(value: Trained | InBlock, update: Weights) -> Trained:
    return replace(value.trained, update=update) if isinstance(value, InBlock) else value
