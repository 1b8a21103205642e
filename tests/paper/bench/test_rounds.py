from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from fedbalancer.core.types import Weights
from fedbalancer.data import Task
from fedbalancer.paper.bench.workloads import NaiveLoop, make_executor, time_rounds


def task_of(*sizes: int, **settings: int) -> Task:
    rng = np.random.default_rng(0)
    data = {
        f"c{row}": (rng.normal(size=(size, 5)).astype(np.float32), rng.integers(3, size=size))
        for row, size in enumerate(sizes)
    }
    return Task(data, data["c0"], partial(nn.Linear, 5, 3), learning_rate=0.5, **settings)


def test_every_visit_of_every_round_is_counted_and_timed() -> None:
    task = task_of(7, 12, 3, batch_size=5, epochs=2)
    executor = make_executor(task, "plain", 1)
    found = time_rounds(task, executor, executor.initial_weights(0), 3)
    assert found.samples == 3 * 2 * (7 + 12 + 3)
    assert len(found.seconds) == 3
    assert min(found.seconds) > 0


def test_one_process_and_a_pool_give_the_same_bytes() -> None:
    task = task_of(7, 12, 3, batch_size=5, epochs=2)
    results: list[Weights] = []
    for workers in (1, 2):
        executor = make_executor(task, "plain", workers)
        try:
            results.append(time_rounds(task, executor, executor.initial_weights(0), 2).weights)
        finally:
            executor.close()
    assert results[0].tobytes() == results[1].tobytes()


def test_the_naive_loop_does_the_same_work() -> None:
    """The models must agree: the order of samples does not matter if all of a client are in one batch."""
    task = task_of(4, 9, batch_size=9, epochs=3)
    loop = NaiveLoop(task, threads=1)
    start = nn.utils.parameters_to_vector(loop.module.parameters()).detach().clone().numpy()
    executor = make_executor(task, "plain", 1)
    ours = time_rounds(task, executor, start, 1).weights
    assert loop.round_s() > 0
    naive = nn.utils.parameters_to_vector(loop.module.parameters()).detach().numpy()
    assert not np.allclose(naive, start, atol=1e-3)
    np.testing.assert_allclose(naive, ours, atol=1e-6)


def test_the_naive_loop_clips_where_the_task_does() -> None:
    task = replace(task_of(9, batch_size=9, epochs=1), clip_norm=0.01)
    loop = NaiveLoop(task, threads=torch.get_num_threads())
    start = nn.utils.parameters_to_vector(loop.module.parameters()).detach().clone()
    loop.round_s()
    step = nn.utils.parameters_to_vector(loop.module.parameters()).detach() - start
    assert abs(float(step.norm()) - 0.5 * 0.01) < 1e-5
