"""Every way to train one task, timed in turns: what happens to the machine meanwhile happens to all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from fedbalancer.bench.flops import flop_per_sample, peak_flop_per_s
from fedbalancer.bench.naive import NaiveLoop
from fedbalancer.bench.rounds import make_executor, path_name, timed_rounds
from fedbalancer.bench.tasks import SHAPES, bench_task
from fedbalancer.task import Task

NAIVE, LIMIT = "naive", "limit"
PEAK_SHARE = 0.2
"""Of a measurement's seconds, what the matrix products take."""

RoundSeconds = Callable[[], float]


@dataclass(frozen=True)
class TaskSpeed:
    """Sample visits a second of every path, one a repeat. The last path is the one that a run takes by default."""

    task: str
    parameters: int
    batch_size: int
    clients: int
    flop_per_sample: float
    layers: tuple[str, ...]
    rates: dict[str, list[float]]

    @property
    def paths(self) -> list[str]:
        return [path for path in self.rates if path not in (NAIVE, LIMIT)]

    def rate(self, path: str) -> float:
        return statistics.median(self.rates[path])

    def ratio(self, path: str, other: str) -> float:
        """Median over the repeats of the ratio in one repeat."""
        return statistics.median(a / b for a, b in zip(self.rates[path], self.rates[other], strict=True))

    def to_json(self) -> dict[str, Any]:
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
    name: str, *, repeats: int, seconds: float, workers: int, threads: int, tell: Callable[[str], None]
) -> TaskSpeed:
    """Time all paths `repeats` times, about `seconds` each; `tell` is told before each."""
    clients = clients_for(name, seconds, workers)
    task = bench_task(name, clients)
    visits = sum(task.sizes.values()) * task.epochs
    flop = flop_per_sample(task)
    with _paths(task, workers, threads) as (paths, parameters):
        paths[LIMIT] = lambda: visits * flop / peak_flop_per_s(PEAK_SHARE * seconds, threads)
        for path, round_s in paths.items():  # warm-up: worker start, compiled kernels, caches
            tell(f"{name}: {path}, warming up")
            round_s()
        rates: dict[str, list[float]] = {path: [] for path in paths}
        for repeat in range(repeats):
            for path, round_s in paths.items():
                tell(f"{name}: {path}, {repeat + 1} of {repeats}")
                rates[path].append(visits / round_s())
    return TaskSpeed(name, parameters, task.batch_size, clients, flop, layers_of(task), rates)


@contextmanager
def _paths(task: Task, workers: int, threads: int) -> Iterator[tuple[dict[str, RoundSeconds], int]]:
    """Every path as a function that gives the seconds of one round, and how many weights the model has."""
    from fedbalancer.client.train import ENGINES

    with ExitStack() as stack:
        naive = NaiveLoop(task, threads)
        paths: dict[str, RoundSeconds] = {NAIVE: naive.round_s}
        for count in dict.fromkeys((1, workers)):
            for engine in reversed(ENGINES):
                executor = make_executor(task, engine, count)
                stack.callback(executor.close)
                weights = executor.initial_weights(0)

                def round_s(executor: Any = executor, weights: Any = weights) -> float:
                    return sum(timed_rounds(task, executor, weights, 1).seconds)

                paths[path_name(engine, count)] = round_s
        yield paths, len(weights)


def layers_of(task: Task) -> tuple[str, ...]:
    """How the engine `fast` runs every layer with parameters, in words."""
    from fedbalancer.client.train import TorchTrainer

    plan = TorchTrainer(task, "fast").plan
    return tuple(str(layer) for layer in plan.layers) if plan is not None else ()


def clients_for(name: str, seconds: float, workers: int) -> int:
    """How many clients take the naive loop about `seconds`: the same number for every worker, at least one each."""
    probe = bench_task(name, 1)
    loop = NaiveLoop(probe, 1)
    loop.round_s()
    wanted = seconds / max(loop.round_s(), 1e-9)
    most = max(1, 50_000 // SHAPES[name].samples)
    return workers * max(1, round(min(wanted, most) / workers))
