"""The whole benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedbalancer.bench.control import clients_per_s, overhead_ms_per_client
from fedbalancer.bench.measure import measure_task
from fedbalancer.bench.results import BenchResult, this_machine
from fedbalancer.bench.tasks import known
from fedbalancer.processes import usable_cores
from fedbalancer.runs.executor_cache import with_torch
from fedbalancer.runs.rounds import one_thread

METHODS = ("fedavg+1t", "fedbalancer")
"""Whose rounds are timed without training: the simplest method, and the one with the most to work out."""


def run_bench(
    tasks: Sequence[str], *, repeats: int, seconds: float, workers: int | None, tell: Callable[[str], None]
) -> BenchResult:
    """Measure the tasks, then what a round costs without training; `tell` is told what is next."""
    with_torch()
    tasks = known(tasks)
    threads = usable_cores()
    workers = max(threads, 2) if workers is None else workers
    machine = this_machine(workers, repeats, seconds)
    with one_thread():
        speeds = tuple(
            measure_task(name, repeats=repeats, seconds=seconds, workers=workers, threads=threads, tell=tell)
            for name in tasks
        )
        tell("rounds without training")
        free = {method: clients_per_s(method, seconds) for method in METHODS}
        tell("tiny clients")
        overhead = overhead_ms_per_client(workers, repeats)
    return BenchResult(machine, speeds, free, overhead)
