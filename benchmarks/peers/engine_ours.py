"""fedbalancer itself: server, simulated engine and a pool of one process a core, with the engine that argv names."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from prepare import client_name
from work import Work, orders, trained_mask

from fedbalancer.core.interfaces import Executor
from fedbalancer.data import Task
from fedbalancer.paper.bench.workloads import make_executor, time_rounds


def task_of(work: Work, epochs: int, learning_rate: float) -> Task:
    """The workload as a task."""
    clients = {client_name(client): tuple(part.numpy() for part in work.samples(client)) for client in work.clients}
    return Task(
        clients=clients,
        test=next(iter(clients.values())),
        model=work.workload.model,
        batch_size=work.workload.batch_size,
        epochs=epochs,
        learning_rate=learning_rate,
    )


def run(order: dict[str, Any], engine: str, executors: dict[str, Executor]) -> dict[str, Any]:
    """Rounds as ordered; seconds of each. The pool of a workload stays."""
    work = Work(order["folder"], order["workload"])
    task = task_of(work, order["epochs"], order["learning_rate"])
    if order["workload"] not in executors:
        while executors:  # one pool at a time: idle ones would hold memory
            executors.popitem()[1].close()
        executors[order["workload"]] = make_executor(task, engine, int(os.environ["PEERS_CORES"]))
    weights, trained = np.load(work.folder / "weights.npy"), trained_mask(work.workload.model())
    result = time_rounds(task, executors[order["workload"]], weights[trained], order["rounds"])
    weights[trained] = result.weights
    np.save(order["out"], weights)
    return {"seconds": result.seconds, "samples": result.samples}


if __name__ == "__main__":
    torch.set_num_threads(1)
    kept: dict[str, Executor] = {}
    for order, answer in orders():
        answer(run(order, sys.argv[1], kept))
    for executor in kept.values():
        executor.close()
