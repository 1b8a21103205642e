"""The benchmark: it measures all tasks and returns the results, as JSON, as a table and as a figure."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.files import write_json, write_text
from fedbalancer.core.processes import usable_cores
from fedbalancer.experiments.executor_cache import require_torch
from fedbalancer.experiments.rounds import one_thread
from fedbalancer.paper.bench.measure import (
    LIMIT,
    NAIVE,
    TaskSpeed,
    measure_clients_per_s,
    measure_overhead_ms,
    measure_task,
)
from fedbalancer.paper.bench.workloads import check_tasks
from fedbalancer.reporting.plotting import plot_rates, write_figure

if TYPE_CHECKING:
    from rich.table import Table

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
