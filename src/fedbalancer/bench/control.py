"""What everything but the training costs."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import numpy as np

from fedbalancer.bench.rounds import make_executor, path_name, timed_rounds
from fedbalancer.loop import rounds as run_rounds
from fedbalancer.runs.simulation import build
from fedbalancer.runs.spec import RunSpec
from fedbalancer.task import Task
from fedbalancer.tasks.synthetic import CLASSES, FEATURES, load, make_model

USERS, COHORT = 10_000, 1_000
TINY_CLIENTS = 200


def clients_per_s(method: str, seconds: float) -> float:
    """Clients of 10,000 that are selected, timed and accounted for a second, 1,000 a round, without any training."""
    task = load(users=USERS)
    spec = RunSpec(task=task, method=method, settings={"clients_per_round": COHORT}, timing_only=True)
    simulation = build(spec, task)
    state = simulation.server.init(simulation.executor.initial_weights(0))
    done, begun = 0, time.perf_counter()
    for _, result in run_rounds(simulation.server, simulation.engine, state, lambda _: False):
        done += len(result.plan.cohort)
        if (taken_s := time.perf_counter() - begun) >= seconds:
            break
    return done / taken_s


def overhead_ms_per_client(workers: int, repeats: int) -> dict[str, float]:
    """Milliseconds a client of a round in which every client takes one step of 610 weights, by path; the median of
    interleaved repeats. Nearly all of it is overhead."""
    task = tiny_task()
    with ExitStack() as stack:
        executors = {path_name("fast", count): make_executor(task, "fast", count) for count in (1, workers)}
        for executor in executors.values():
            stack.callback(executor.close)
        weights = {path: executor.initial_weights(0) for path, executor in executors.items()}
        seconds: dict[str, list[float]] = {path: [] for path in executors}
        for _ in range(repeats + 1):
            for path, executor in executors.items():
                seconds[path].extend(timed_rounds(task, executor, weights[path], 1).seconds)
    # The first round is the warm-up.
    return {path: 1000 * statistics.median(taken[1:]) / TINY_CLIENTS for path, taken in seconds.items()}


def tiny_task() -> Task:
    """Clients of ten samples and a logistic regression, for one step each."""
    features = np.random.default_rng(0).normal(size=(10, FEATURES)).astype(np.float32)
    data = {f"c{row:04d}": (features, np.arange(10) % CLASSES) for row in range(TINY_CLIENTS)}
    return Task(data, next(iter(data.values())), make_model, name="tiny", epochs=1)
