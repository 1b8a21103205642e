"""What was measured, as JSON, as a table and as a picture."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.bench.measure import LIMIT, NAIVE, TaskSpeed
from fedbalancer.files import write_json, write_text
from fedbalancer.processes import usable_cores
from fedbalancer.reporting.plotting import plot_rates, write_figure

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class BenchResult:
    """All that one `fedbalancer bench` found."""

    machine: dict[str, Any]
    tasks: tuple[TaskSpeed, ...]
    clients_per_s: dict[str, float]
    overhead_ms_per_client: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "tasks": {speed.task: speed.to_json() for speed in self.tasks},
            "clients_per_s_without_training": self.clients_per_s,
            "overhead_ms_per_client": self.overhead_ms_per_client,
        }

    @property
    def headings(self) -> list[str]:
        """Of the table: the task, the paths, the limit, and two ratios."""
        return ["task", *self.tasks[0].rates, "x naive", "of limit"]

    def rows(self) -> list[list[str]]:
        """Samples a second of every path; how the last of our paths compares."""
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
        """What the table does not say."""
        free = ", ".join(f"{method} {rate:,.0f}" for method, rate in self.clients_per_s.items())
        tiny = ", ".join(f"{path} {value:.2f}" for path, value in self.overhead_ms_per_client.items())
        return [f"clients/s without training: {free}", f"ms a client of one tiny step: {tiny}"]

    def table(self) -> Table:
        from rich.table import Table

        table = Table(title="samples/s of local training, median")
        for heading in self.headings:
            table.add_column(heading, justify="left" if heading == "task" else "right")
        for row in self.rows():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """The table as it goes into a page."""
        lines = [self.headings, ["---"] + ["---:"] * (len(self.headings) - 1), *self.rows()]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n\n" + "\n".join(self.notes()) + "\n"

    def write(self, folder: Path) -> None:
        """`bench.json`, `bench.md` and `bench.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bench.json", self.to_json())
        write_text(folder / "bench.md", self.markdown())
        panels = {f"{speed.task} (samples/s)": {path: speed.rate(path) for path in speed.rates} for speed in self.tasks}
        figure = plot_rates("Local training", panels, strong=self.tasks[0].paths[-1], limit=LIMIT)
        write_figure(figure, folder / "bench.png")


def this_machine(workers: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Where and how it was measured."""
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
