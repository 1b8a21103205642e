"""Figure 4: the efficiency of deadlines (DDL-E) from 1 to 1,200 seconds, on the devices of each task.

Every client trains all its samples for all epochs; its time is what the server expects of it before the first round.
DDL-E grows with the number of clients, so that it is also given per client. Devices are drawn by seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedbalancer.paper.item import Charts, Finding, Frames, Presentation, Table, WithoutRuns, Work
from fedbalancer.paper.lines import Line, lines_charts
from fedbalancer.paper.printed import CLIENTS, DDLE, Printed
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting.plotting import FAINT, add_legend, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.style import BLUE
from fedbalancer.runs.simulation import build
from fedbalancer.server.deadline.peak import peak_deadline
from fedbalancer.server.expected import expected_first_s
from fedbalancer.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THINNED = 3
LONGEST_S = 1200


@dataclass(frozen=True)
class Figure4(WithoutRuns):
    """DDL-E over deadlines."""

    name: str = "fig4"
    title: str = "the efficiency of deadlines (DDL-E)"
    place: str = "Figure 4"

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        spec = replace(work.request.spec(work.task), method="fedavg+1t", timing_only=True)
        task = spec.load_task()
        peaks, curves = [], []
        for seed in range(work.request.seeds):
            setup = build(replace(spec, seed=seed), task).server.setup
            times_s = expected_first_s(setup, setup.ledger, slice(None))
            deadline_s, ddle = peak_deadline(times_s[times_s <= LONGEST_S] if (times_s <= LONGEST_S).any() else times_s)
            peaks.append((task.name, work.request.scale, task.variant, len(times_s), seed, deadline_s, ddle))
            curves.append(_curve(task.name, seed, times_s))
        columns = ["task", "scale", "variant", "clients", "seed", "peak_deadline_s", "peak_ddle"]
        return {"peaks": pl.DataFrame(peaks, schema=columns, orient="row"), "ddle": pl.concat(curves)}

    def present(self, frames: Frames) -> Presentation:
        peaks = frames["peaks"]
        medians = peaks.group_by("task", maintain_order=True).agg(pl.median("peak_deadline_s", "peak_ddle")).to_dicts()
        result = {row.pop("task"): row for row in medians}
        said = [f"{task}: {at['peak_deadline_s']:.0f} s, DDL-E {at['peak_ddle']:.2f}" for task, at in result.items()]
        return Presentation(
            headline=f"Peak of DDL-E, median of the seeds: {'; '.join(said)}.",
            points=[f"{each} (peak, median of the seeds)" for each in said],
            charts=_charts(frames["ddle"]),
            tables=[_table(peaks)],
            findings=_findings(peaks),
            notes=(
                "The paper shows one draw of FEMNIST's and Shakespeare's devices and data; ours are drawn by seed, and "
                "the data are those of the variant named in the table.",
            ),
            figures={self.name: _figure(frames["ddle"])},
            json=result,
        )


def _curve(task: str, seed: int, times_s: FloatArray) -> pl.DataFrame:
    deadlines = np.arange(1, LONGEST_S + 1)
    done = np.searchsorted(np.sort(times_s), deadlines, side="right")
    columns = {"seed": np.full(LONGEST_S, seed), "deadline_s": deadlines, "completed": done, "ddle": done / deadlines}
    return pl.DataFrame({"task": [task] * LONGEST_S, **columns})


def _table(peaks: pl.DataFrame) -> Table:
    lines = [
        (
            row["task"], f"{row['scale']}, {row['variant']}", str(row["clients"]), str(row["seed"]),
            f"{row['peak_deadline_s']:.0f} s", f"{row['peak_ddle']:.2f}", f"{row['peak_ddle'] / row['clients']:.5f}",
        )
        for row in peaks.iter_rows(named=True)
    ]  # fmt: skip
    return Table("Peaks", ("Task", "Data", "Clients", "Seed", "Deadline", "DDL-E", "DDL-E per client"), lines)


def _findings(peaks: pl.DataFrame) -> list[Finding]:
    findings = []
    for (name,), mine in peaks.group_by(["task"], maintain_order=True):
        task = str(name)
        deadline, ddle = DDLE.get(task, (None, None))
        each = (
            None
            if ddle is None
            else Printed(ddle.mean / CLIENTS[task], None, 5, f"{ddle.place} over {CLIENTS[task]} users")
        )
        columns = {
            "deadline of peak DDL-E, s": (mine["peak_deadline_s"], deadline),
            "peak DDL-E": (mine["peak_ddle"], ddle),
            "peak DDL-E per client": (mine["peak_ddle"] / mine["clients"], each),
        }
        for what, (values, paper) in columns.items():
            found = Estimate.of(values.to_list())
            ours = Ours(found.mean, found.low, found.high)
            digits = 5 if "per client" in what else 2 if what[:4] == "peak" else 0
            findings.append(Finding.of(task, what, ours, paper, digits=digits, more_is_better=None))
    return findings


def _charts(ddle: pl.DataFrame) -> Charts:
    """Every third second, and each line's peak."""
    panels: dict[str, dict[str, Line]] = {}
    for (task, seed), line in ddle.group_by(["task", "seed"], maintain_order=True):
        kept = line.filter((pl.col("deadline_s") % THINNED == 0) | (pl.col("ddle") == pl.col("ddle").max()))
        drawn = {"x": kept["deadline_s"].to_numpy(), "y": kept["ddle"].to_numpy()}
        panels.setdefault(str(task), {})[f"seed {seed}"] = drawn
    marks = {task: [{"x": DDLE[task][0].mean, "text": "the paper's peak"}] for task in panels if task in DDLE}
    about = "Clients that end within a deadline, for every second of it."
    return lines_charts(panels, "deadline (s)", "DDL-E (clients per second)", about, marks)


def _figure(ddle: pl.DataFrame) -> Figure:
    tasks = ddle["task"].unique(maintain_order=True).to_list()
    figure, grid = make_panels(tasks, "Deadline (s)", "DDL-E (clients per second)")
    for axes, task in zip(grid, tasks, strict=True):
        for (seed,), line in ddle.filter(pl.col("task") == task).group_by(["seed"], maintain_order=True):
            first = seed == 0
            axes.plot(
                line["deadline_s"], line["ddle"], color=BLUE, linewidth=1.0, alpha=0.9 if first else 0.3,
                label="seed 0" if first else "other seeds",
            )  # fmt: skip
        if task in DDLE:
            peak_s = DDLE[task][0].mean
            axes.axvline(peak_s, color=FAINT, linestyle=(0, (5, 3)), linewidth=0.9, label="the paper's peak")
        axes.set_xlim(0, LONGEST_S)
        axes.set_ylim(bottom=0)
    return add_legend(figure)


ITEM = Figure4()
