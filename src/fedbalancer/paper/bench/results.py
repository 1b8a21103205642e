"""The benchmark: it measures all tasks and returns the results, as JSON, as a table and as a figure."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.files import write_json, write_text
from fedbalancer.core.processes import usable_cores
from fedbalancer.data import Task
from fedbalancer.data.tasks.synthetic import CLASSES, FEATURES, load, make_model
from fedbalancer.experiments.executor_cache import require_torch
from fedbalancer.experiments.rounds import one_thread
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.bench.workloads import (
    SHAPES,
    NaiveLoop,
    bench_task,
    check_tasks,
    make_executor,
    path_name,
    time_rounds,
)
from fedbalancer.reporting.plotting import plot_rates, write_figure
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.training.flops import count_flops

if TYPE_CHECKING:
    from rich.table import Table


NAIVE, LIMIT = "naive", "limit"
PEAK_SHARE = 0.2
"""Share of a measurement's seconds for the matrix products."""
SIDE = 1024
"""Side of the square matrices whose product is timed: 4 MB each, large enough to keep every core busy."""
USERS, COHORT = 10_000, 1_000
TINY_CLIENTS = 200

RoundSeconds = Callable[[], float]


@dataclass(frozen=True)
class TaskSpeed:
    """The speed of one task: sample visits per second of every path. A run uses the last path by default.

    Args:
        task: Name of the task.
        parameters: Number of parameters of its model.
        batch_size: Samples per batch.
        clients: Number of clients.
        flop_per_sample: Floating-point operations per sample visit.
        layers: The layers of the model.
        rates: Sample visits per second by path, one value per repeat.
    """

    task: str
    parameters: int
    batch_size: int
    clients: int
    flop_per_sample: float
    layers: tuple[str, ...]
    rates: dict[str, list[float]]

    @property
    def paths(self) -> list[str]:
        """The names of the paths."""
        return [path for path in self.rates if path not in (NAIVE, LIMIT)]

    def rate(self, path: str) -> float:
        """Return the median rate of a path."""
        return statistics.median(self.rates[path])

    def ratio(self, path: str, other: str) -> float:
        """Return the median over repeats of the ratio of two paths."""
        return statistics.median(a / b for a, b in zip(self.rates[path], self.rates[other], strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        best = self.paths[-1]
        return {
            "samples_per_s": self.rate(best),
            "naive_samples_per_s": self.rate(NAIVE),
            "ratio_to_naive": self.ratio(best, NAIVE),
            "limit_samples_per_s": self.rate(LIMIT),
            "ratio_to_limit": self.ratio(best, LIMIT),
            "path": best,
            "paths": {
                path: {"samples_per_s": self.rate(path), "ratio_to_naive": self.ratio(path, NAIVE), "repeats": rates}
                for path, rates in self.rates.items()
            },
            "mflop_per_sample": self.flop_per_sample / 1e6,
            "parameters": self.parameters,
            "batch_size": self.batch_size,
            "clients": self.clients,
            "layers": list(self.layers),
        }


def measure_task(
    name: str, *, repeats: int, seconds: float, workers: int, threads: int, report: Callable[[str], None]
) -> TaskSpeed:
    """Time all paths of a task.

    Args:
        name: Name of the task.
        repeats: Number of timings per path.
        seconds: Approximate seconds of one timing of the naive loop.
        workers: Number of worker processes of the pool.
        threads: Number of torch threads of the naive loop.
        report: Callback for progress, called before each timing.
    """
    clients = choose_clients(name, seconds, workers)
    task = bench_task(name, clients)
    visits = sum(task.sizes.values()) * task.epochs
    flop = count_flops(task).train_flops  # products and convolutions only, so the limit cannot be reached
    with _open_paths(task, workers, threads) as (paths, parameters):
        paths[LIMIT] = lambda: visits * flop / peak_flop_per_s(PEAK_SHARE * seconds, threads)
        for path, round_s in paths.items():  # warm-up: worker start, compiled kernels, caches
            report(f"{name}: {path}, warming up")
            round_s()
        rates: dict[str, list[float]] = {path: [] for path in paths}
        for repeat in range(repeats):
            for path, round_s in paths.items():
                report(f"{name}: {path}, {repeat + 1} of {repeats}")
                rates[path].append(visits / round_s())
    return TaskSpeed(name, parameters, task.batch_size, clients, flop, describe_layers(task), rates)


@contextmanager
def _open_paths(task: Task, workers: int, threads: int) -> Iterator[tuple[dict[str, RoundSeconds], int]]:
    """Provide every path as a function that returns the seconds of one round, and the number of weights."""
    from fedbalancer.training.trainer import BACKENDS

    with ExitStack() as stack:
        naive = NaiveLoop(task, threads)
        paths: dict[str, RoundSeconds] = {NAIVE: naive.round_s}
        for count in dict.fromkeys((1, workers)):
            for backend in reversed(BACKENDS):
                executor = make_executor(task, backend, count)
                stack.callback(executor.close)
                weights = executor.initial_weights(0)

                def round_s(executor: Any = executor, weights: Any = weights) -> float:
                    return sum(time_rounds(task, executor, weights, 1).seconds)

                paths[path_name(backend, count)] = round_s
        yield paths, len(weights)


def describe_layers(task: Task) -> tuple[str, ...]:
    """Describe how the backend `fast` runs every layer with parameters."""
    from fedbalancer.training.trainer import TorchTrainer

    plan = TorchTrainer(task, "fast").plan
    return tuple(str(layer) for layer in plan.layers) if plan is not None else ()


def choose_clients(name: str, seconds: float, workers: int) -> int:
    """Choose a number of clients for which the naive loop takes about the given time.

    Args:
        name: Name of the task.
        seconds: Duration of the naive loop.
        workers: Number of workers; the result is a multiple of it.
    """
    probe = bench_task(name, 1)
    loop = NaiveLoop(probe, 1)
    loop.round_s()
    fitting = seconds / max(loop.round_s(), 1e-9)
    most = max(1, 50_000 // SHAPES[name].samples)
    return workers * max(1, round(min(fitting, most) / workers))


def peak_flop_per_s(seconds: float, threads: int) -> float:
    """Measure the highest rate of float32 matrix products.

    Args:
        seconds: Duration of the measurement.
        threads: Number of threads.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        out = torch.empty(SIDE, SIDE)
        torch.mm(left, right, out=out)
        best_s, until = float("inf"), time.perf_counter() + seconds
        while (started := time.perf_counter()) < until:
            torch.mm(left, right, out=out)
            best_s = min(best_s, time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return 2 * SIDE**3 / best_s


def measure_clients_per_s(method: str, seconds: float) -> float:
    """Measure how many clients per second are selected and simulated without training, 1,000 of 10,000 per round.

    Args:
        method: Name of the method.
        seconds: Duration of the measurement.
    """
    task = load(users=USERS)
    spec = RunSpec(task=task, method=method, settings={"clients_per_round": COHORT}, timing_only=True)
    simulation = build(spec, task)
    state = simulation.server.init(simulation.executor.initial_weights(0))
    done, started = 0, time.perf_counter()
    for _, result in run_rounds(simulation.server, simulation.engine, state, lambda _: False):
        done += len(result.plan.cohort)
        if (taken_s := time.perf_counter() - started) >= seconds:
            break
    return done / taken_s


def measure_overhead_ms(workers: int, repeats: int) -> dict[str, float]:
    """Measure the milliseconds per client of a round in which every client takes one step of 610 weights, by path.

    Nearly all of this time is overhead. The result is the median of interleaved repeats.

    Args:
        workers: Number of workers of the pool.
        repeats: Number of repeats.
    """
    task = make_tiny_task()
    with ExitStack() as stack:
        executors = {path_name("fast", count): make_executor(task, "fast", count) for count in (1, workers)}
        for executor in executors.values():
            stack.callback(executor.close)
        weights = {path: executor.initial_weights(0) for path, executor in executors.items()}
        seconds: dict[str, list[float]] = {path: [] for path in executors}
        for _ in range(repeats + 1):
            for path, executor in executors.items():
                seconds[path].extend(time_rounds(task, executor, weights[path], 1).seconds)
    # The first repeat is a warm-up.
    return {path: 1000 * statistics.median(taken[1:]) / TINY_CLIENTS for path, taken in seconds.items()}


def make_tiny_task() -> Task:
    """Create a task of clients with ten samples and a logistic regression, for one step each."""
    features = np.random.default_rng(0).normal(size=(10, FEATURES)).astype(np.float32)
    data = {f"c{row:04d}": (features, np.arange(10) % CLASSES) for row in range(TINY_CLIENTS)}
    return Task(data, next(iter(data.values())), make_model, name="tiny", epochs=1)


METHODS = ("fedavg+1t", "fedbalancer")
"""Methods whose rounds are timed without training: the simplest one, and the one with most computation."""


@dataclass(frozen=True)
class BenchResult:
    """The results of one `fedbalancer bench`.

    Args:
        machine: Description of the machine and of the options.
        tasks: The speed of every task.
        clients_per_s: Simulated clients per second without training, by method.
        overhead_ms_per_client: Milliseconds of overhead per client, by path.
    """

    machine: dict[str, Any]
    tasks: tuple[TaskSpeed, ...]
    clients_per_s: dict[str, float]
    overhead_ms_per_client: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain values."""
        return {
            "machine": self.machine,
            "tasks": {speed.task: speed.to_json() for speed in self.tasks},
            "clients_per_s_without_training": self.clients_per_s,
            "overhead_ms_per_client": self.overhead_ms_per_client,
        }

    @property
    def headings(self) -> list[str]:
        """Columns of the table: the task, the paths, the limit, and two ratios."""
        return ["task", *self.tasks[0].rates, "x naive", "of limit"]

    def rows(self) -> list[list[str]]:
        """Return the samples per second of every path, and the ratios of the last path."""
        return [
            [
                speed.task,
                *(f"{speed.rate(path):,.0f}" for path in speed.rates),
                f"{speed.ratio(speed.paths[-1], NAIVE):.2f}",
                f"{speed.ratio(speed.paths[-1], LIMIT):.0%}",
            ]
            for speed in self.tasks
        ]

    def notes(self) -> list[str]:
        """Return the results that are not in the table."""
        without_training = ", ".join(f"{method} {rate:,.0f}" for method, rate in self.clients_per_s.items())
        tiny = ", ".join(f"{path} {value:.2f}" for path, value in self.overhead_ms_per_client.items())
        return [f"clients/s without training: {without_training}", f"ms per client for one tiny step: {tiny}"]

    def table(self) -> Table:
        from rich.table import Table

        table = Table(title="samples/s of local training, median")
        for heading in self.headings:
            table.add_column(heading, justify="left" if heading == "task" else "right")
        for row in self.rows():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return the table and the notes as Markdown."""
        lines = [self.headings, ["---"] + ["---:"] * (len(self.headings) - 1), *self.rows()]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n\n" + "\n".join(self.notes()) + "\n"

    def write(self, folder: Path) -> None:
        """Write `bench.json`, `bench.md` and `bench.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bench.json", self.to_json())
        write_text(folder / "bench.md", self.markdown())
        panels = {f"{speed.task} (samples/s)": {path: speed.rate(path) for path in speed.rates} for speed in self.tasks}
        figure = plot_rates("Local training", panels, strong=self.tasks[0].paths[-1], limit=LIMIT)
        write_figure(figure, folder / "bench.png")


def describe_machine(workers: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Describe the machine and the options of the benchmark.

    Args:
        workers: Number of workers of the pool.
        repeats: Number of repeats.
        seconds: Duration of one timing.
    """
    return {
        "cores": usable_cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "workers": workers,
        "repeats": repeats,
        "seconds": seconds,
    }


def run_bench(
    tasks: Sequence[str], *, repeats: int, seconds: float, workers: int | None, report: Callable[[str], None]
) -> BenchResult:
    """Run the benchmark: local training of the tasks, then rounds without training and with tiny clients.

    Args:
        tasks: Names of the tasks.
        repeats: Number of timings.
        seconds: Approximate seconds of one timing of the naive loop.
        workers: Worker processes of the pool. Default: one per core, at least 2.
        report: Callback for progress.

    Raises:
        UnknownName: If a task is not part of the benchmark.
        MissingData: If torch is not installed.
    """
    require_torch()
    tasks = check_tasks(tasks)
    threads = usable_cores()
    workers = max(threads, 2) if workers is None else workers
    machine = describe_machine(workers, repeats, seconds)
    with one_thread():
        speeds = tuple(
            measure_task(name, repeats=repeats, seconds=seconds, workers=workers, threads=threads, report=report)
            for name in tasks
        )
        report("rounds without training")
        clients_per_s = {method: measure_clients_per_s(method, seconds) for method in METHODS}
        report("tiny clients")
        overhead = measure_overhead_ms(workers, repeats)
    return BenchResult(machine, speeds, clients_per_s, overhead)
