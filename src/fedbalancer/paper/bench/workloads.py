"""The workloads of the benchmark: tasks with random data, rounds of FedAvg on any executor, and a naive loop.

The models have their published size. Speed does not depend on the values of the data, so no data set is needed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import UnknownName
from fedbalancer.core.interfaces import Executor
from fedbalancer.core.randomness import stream
from fedbalancer.core.schedules import rate_of_round
from fedbalancer.core.task import Samples
from fedbalancer.core.types import Weights
from fedbalancer.data import Task
from fedbalancer.data.tasks import celeba, femnist, har, reddit, shakespeare, watch
from fedbalancer.experiments.executor_cache import trainer_for
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.simulation.executors import Resources
from fedbalancer.training.tensors import masked_loss, resolve_loss, to_tensors

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.tensors import Tensors


@dataclass(frozen=True)
class Shape:
    """The properties of a task that determine its speed.

    Args:
        model: Function that creates the model.
        samples: Typical number of samples per client.
        shape: Shape of a sample's features.
        classes: Number of classes.
        dtype: Type of the features.
        features_below: Upper limit of uniform integer features; 0 for normally distributed floats.
        label_shape: Shape of a sample's labels.
        end_early: Share of sequences that end at a random position; labels after the end do not count.
        settings: Other settings of the task.
    """

    model: Callable[[], Any]
    samples: int
    shape: tuple[int, ...]
    classes: int
    dtype: str = "float32"
    features_below: int = 0
    label_shape: tuple[int, ...] = ()
    end_early: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, count: int, rng: np.random.Generator) -> Samples:
        """Draw `count` random samples."""
        labels = rng.integers(self.classes, size=(count, *self.label_shape))
        if self.end_early:
            labels = self._cut(labels, rng)
        size = (count, *self.shape)
        if self.features_below:
            return rng.integers(self.features_below, size=size).astype(self.dtype), labels
        return rng.normal(size=size).astype(self.dtype), labels

    def _cut(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        steps = labels.shape[1]
        ends = np.where(rng.random(len(labels)) < self.end_early, rng.integers(1, steps, len(labels)), steps)
        return np.where(np.arange(steps) < ends[:, None], labels, self.classes)


def _settings(published: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    """Return the batch size and other settings that change the work of a step."""
    return {"batch_size": published["batch_size"], **more}


_REDDIT_LOSS = {"loss": masked_loss, "metric": reddit.count_hits, "clip_norm": 5.0}
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "femnist": Shape(femnist.make_model, 180, (1, 28, 28), 62, settings=_settings(femnist.PAPER)),
        "har": Shape(har.make_model, 350, (9, 128), 6, settings=_settings(har.PAPER)),
        "celeba": Shape(celeba.make_model, 20, (3, 84, 84), 2, "uint8", 256, settings=_settings(celeba.PAPER)),
        "shakespeare": Shape(
            shakespeare.make_model, 400, (80,), 80, "int64", 80, settings=_settings(shakespeare.SETTINGS["paper"])
        ),
        "reddit": Shape(
            reddit.make_model, 40, (10,), 10_000, "int16", 10_000, (10,), end_early=0.49,
            settings=_settings(reddit.SETTINGS["paper"], **_REDDIT_LOSS),
        ),
        "watch": Shape(watch.make_model, 180, (watch.CHANNELS, watch.WINDOW), watch.EXERCISES),
    }
)  # fmt: skip


def check_tasks(names: Iterable[str]) -> tuple[str, ...]:
    """Validate names of tasks.

    Raises:
        UnknownName: If one is not in `SHAPES`.
    """
    names = tuple(names)
    for name in names:
        if name not in SHAPES:
            raise UnknownName("task of the benchmark", name, SHAPES)
    return names


def bench_task(name: str, clients: int) -> Task:
    """Create a task with random data, one local epoch, and a learning rate that cannot diverge.

    Args:
        name: One of `SHAPES`.
        clients: Number of clients, each of the usual size.

    Example:
        >>> task = bench_task("har", clients=2)
        >>> task.sizes, task.batch_size
        ({'c0000': 350, 'c0001': 350}, 10)
    """
    shape = SHAPES[name]
    data = {f"c{row:04d}": shape.draw(shape.samples, stream(0, f"bench {name}", row)) for row in range(clients)}
    return Task(
        clients=data,
        test=next(iter(data.values())),
        model=shape.model,
        name=name,
        epochs=1,
        learning_rate=1e-4,
        classes=None if shape.label_shape else shape.classes,
        **shape.settings,
    )


@dataclass(frozen=True, eq=False)
class TimedRounds:
    """Rounds whose duration was measured.

    Args:
        seconds: The seconds of each round.
        samples: Number of sample visits.
        weights: The final weights.
    """

    seconds: tuple[float, ...]
    samples: int
    weights: Weights


def path_name(backend: str, workers: int) -> str:
    """Return the name of a path.

    Example:
        >>> path_name("fast", 1), path_name("plain", 2)
        ('fast inline', 'plain pool of 2')
    """
    return f"{backend} inline" if workers == 1 else f"{backend} pool of {workers}"


def make_executor(task: Task, backend: str, workers: int) -> Executor:
    """Create an executor: in this process for one worker, otherwise a pool.

    Args:
        task: The task.
        backend: Training backend: fast or plain.
        workers: Number of workers.
    """
    return Resources(workers=workers).make_executor(partial(trainer_for, task, backend), task.sizes)


def time_rounds(task: Task, executor: Executor, weights: Weights, count: int) -> TimedRounds:
    """Time rounds of FedAvg (plan, train, average) in which every client trains all its epochs.

    Args:
        task: The task.
        executor: Trains the clients.
        weights: The initial weights.
        count: Number of rounds.
    """
    all_clients = replace(task, clients_per_round=len(task.sizes))
    simulation = build(RunSpec(task=all_clients, method="fedavg+wfa"), all_clients, executor)
    seconds, samples, started = [], 0, time.perf_counter()
    state = simulation.server.init(weights)
    for after, result in run_rounds(simulation.server, simulation.engine, state, lambda state: state.round >= count):
        now = time.perf_counter()
        seconds.append(now - started)
        samples += sum(int(report.summary.trained * report.epochs) for report in result.reports)
        state, started = after, now
    return TimedRounds(tuple(seconds), samples, state.weights)


class NaiveLoop:
    """A naive FedAvg as the baseline: for every client a copy of the module, a DataLoader and an optimizer.

    Args:
        task: The task; all its clients train.
        threads: Number of torch threads.
    """

    def __init__(self, task: Task, threads: int) -> None:
        self.task = task
        self.threads = threads
        self.module: torch.nn.Module = task.model()
        self._data = {client: to_tensors(samples) for client, samples in task.clients.items()}
        self._loss = resolve_loss(task.loss)

    def round_s(self) -> float:
        """Run a round, which trains every client and averages weighted by samples, and return its seconds."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        started = time.perf_counter()
        try:
            self._run_round()
        finally:
            torch.set_num_threads(before)
        return time.perf_counter() - started

    def _run_round(self) -> None:
        import torch

        total = sum(len(labels) for _, labels in self._data.values())
        mean = [torch.zeros_like(parameter) for parameter in self.module.parameters()]
        for data in self._data.values():
            local = self._train(data)
            for part, parameter in zip(mean, local.parameters(), strict=True):
                part.add_(parameter.detach(), alpha=len(data[1]) / total)
        with torch.no_grad():
            for parameter, part in zip(self.module.parameters(), mean, strict=True):
                parameter.copy_(part)

    def _train(self, data: Tensors) -> torch.nn.Module:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        module = copy.deepcopy(self.module).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=rate_of_round(self.task.learning_rate, None, 1))
        for _ in range(self.task.epochs):
            for features, labels in DataLoader(TensorDataset(*data), batch_size=self.task.batch_size, shuffle=True):
                optimizer.zero_grad()
                torch.autograd.backward(self._loss(module(features), labels).mean())
                if self.task.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), self.task.clip_norm)
                optimizer.step()
        return module
