"""A process of the pool: how it lives, and how requests reach it.

A pipe carries requests and answers; large weights and updates lie in blocks whose descriptors follow the request.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from fedbalancer.engine.executors import shared_memory
from fedbalancer.engine.executors.worker import Answer, Worker
from fedbalancer.processes import become_worker
from fedbalancer.types import Trained, Weights


@dataclass(frozen=True, eq=False)
class Request:
    """What a worker is asked. `weights` are a number of values if they come in a block; with `updates` there is a
    block for those, each at its position."""

    verb: str
    items: Sequence[Any]
    positions: tuple[int, ...]
    weights: Weights | int | None
    updates: bool


@dataclass(frozen=True, eq=False)
class InBlock:
    """A result whose update lies in the block."""

    trained: Trained


def serve(pipe: Any, make_trainer: shared_memory.SharedValue) -> None:
    """The life of a worker process: it ends when the driver closes the pipe or is gone."""
    become_worker()
    worker = Worker()
    answer = worker.start(lambda: make_trainer.value)
    make_trainer.close()
    try:
        while True:
            pipe.send_bytes(cloudpickle.dumps(answer))
            answer = _done(worker, cloudpickle.loads(pipe.recv_bytes()), pipe)
    except (EOFError, OSError):
        return


def _done(worker: Worker, request: Request, pipe: Any) -> Answer:
    weights = request.weights
    if isinstance(weights, int):
        descriptor = reduction.recv_handle(pipe)
        weights = shared_memory.mapped(descriptor, weights, own=True)
        os.close(descriptor)
    if not request.updates or weights is None:
        return worker.answer(request.verb, request.items, weights)
    updates = reduction.recv_handle(pipe)
    try:
        answer = worker.answer(request.verb, request.items, weights)
        pairs = zip(request.positions, answer.values, strict=False)
        return replace(answer, values=[_put_in(value, updates, position, weights) for position, value in pairs])
    finally:
        os.close(updates)


def _put_in(value: Trained, block: int, position: int, weights: Weights) -> Trained | InBlock:
    if value.update.dtype != weights.dtype or value.update.shape != weights.shape:
        return value
    shared_memory.write(block, value.update, position * weights.nbytes)
    return InBlock(replace(value, update=np.empty(0, dtype=np.float32)))
