"""Whole rounds of FedAvg as a run makes them: plan, train, average; on any executor, with a clock beside them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from fedbalancer.engine.executors import Resources
from fedbalancer.loop import rounds as run_rounds
from fedbalancer.protocols import Executor
from fedbalancer.runs.executor_cache import trainer_for
from fedbalancer.runs.simulation import build
from fedbalancer.runs.spec import RunSpec
from fedbalancer.task import Task
from fedbalancer.types import Weights


@dataclass(frozen=True, eq=False)
class TimedRounds:
    """What the rounds took, how many samples they visited, and the weights at the end."""

    seconds: tuple[float, ...]
    samples: int
    weights: Weights


def path_name(engine: str, workers: int) -> str:
    """What a path is called.

    >>> path_name("fast", 1), path_name("plain", 2)
    ('fast inline', 'plain pool of 2')
    """
    return f"{engine} inline" if workers == 1 else f"{engine} pool of {workers}"


def make_executor(task: Task, engine: str, workers: int) -> Executor:
    """The task's trainer with that engine: in this process, or in a pool for several workers."""
    return Resources(workers=workers).make_executor(partial(trainer_for, task, engine), task.sizes)


def timed_rounds(task: Task, executor: Executor, weights: Weights, count: int) -> TimedRounds:
    """`count` rounds in which every client of the task trains all its epochs."""
    everybody = replace(task, clients_per_round=len(task.sizes))
    simulation = build(RunSpec(task=everybody, method="fedavg+wfa"), everybody, executor)
    seconds, samples, begun = [], 0, time.perf_counter()
    state = simulation.server.init(weights)
    for after, result in run_rounds(simulation.server, simulation.engine, state, lambda state: state.round >= count):
        now = time.perf_counter()
        seconds.append(now - begun)
        samples += sum(int(report.summary.trained * report.epochs) for report in result.reports)
        state, begun = after, now
    return TimedRounds(tuple(seconds), samples, state.weights)
