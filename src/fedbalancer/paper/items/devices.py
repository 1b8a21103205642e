"""Items about the devices: their classes and latencies (Table 4), and the efficiency of deadlines on them (Figure 4).

Figure 4 shows DDL-E for deadlines from 1 to 1,200 seconds. Every client trains all its samples for all epochs; its time
is the server's estimate before the first round. DDL-E grows with the number of clients, so it is also given per client.
Devices are drawn by seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedbalancer.core.types import FloatArray
from fedbalancer.experiments.clock import latency_row, latency_scale
from fedbalancer.experiments.simulation import build, resolve_spec
from fedbalancer.paper.charts import Line, line_charts
from fedbalancer.paper.item import Charts, Finding, Frames, Item, Measured, Presentation, Request, Table, Work
from fedbalancer.paper.printed import CLIENTS, DDLE, NETWORK_CV, TASKS, Printed
from fedbalancer.paper.printed import TABLE4 as PHONES
from fedbalancer.reporting.plotting import FAINT, add_legend, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.style import BLUE, GREEN, ORANGE
from fedbalancer.server.deadline.peak import peak_deadline
from fedbalancer.server.expected import expected_first_s
from fedbalancer.simulation.devices import Network, Phones
from fedbalancer.simulation.devices.models import CLASS_WEIGHTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS = 100
"""Number of rounds over which latencies are drawn."""
COLOURS = {"slow": BLUE, "mid": ORANGE, "fast": GREEN}


class DeviceItem(Item):
    """Base of items that only draw the devices of the published tasks and execute no runs."""

    def runs(self, request: Request) -> int:
        return 0

    def check(self, request: Request) -> None:
        for task in request.tasks:
            request.spec(task).load_task()


class Table4(DeviceItem):
    """The devices of each task."""

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        spec = replace(work.request.spec(work.task), method="fedavg+1t", timing_only=True)
        task = spec.load_task()
        settings, _ = resolve_spec(spec, task)
        frames = []
        for seed in work.request.seeds:
            engine = build(replace(spec, seed=seed), task).engine
            latency = latency_row(task, latency_scale(task, settings))
            phones = Phones(seed=seed, latency=latency, network=Network(seed=seed, floor=settings.network_floor))
            frames.append(_draw_latencies(task.name, phones, tuple(sorted(task.sizes)), engine.down_bytes))
        return {
            "devices": pl.concat(frames).with_columns(scale=pl.lit(work.request.scale), variant=pl.lit(task.variant))
        }

    def present(self, frames: Frames) -> Presentation:
        classes = average_classes(frames["devices"])
        shares = {
            row["class"]: row["share"]
            for row in classes.group_by("class", maintain_order=True).agg(pl.mean("share")).to_dicts()
        }
        parts = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
        return Presentation(
            headline=f"Our clients are {parts}: three classes of one device model, drawn for every seed. The paper's "
            "test bed had 21 phones of 13 models.",
            tables=[_class_table(classes), _phone_table()],
            findings=_find_variation(frames["devices"]),
            notes=(
                "Table 4 lists the phones of the test bed. The paper's simulations draw every client as one of three "
                f"phones (weights: {', '.join(f'{name} {weight}' for name, weight in CLASS_WEIGHTS.items())}).",
                "The paper's CV of 0.40 agrees with that of the speeds of its nineteen networks (0.43 down, 0.38 up). "
                "The duration of a transfer is the inverse of a speed that can be near 0, and so varies more.",
            ),
            figures={self.name: _plot_classes(classes)},
            json=classes.to_dicts(),
        )


def _draw_latencies(task: str, phones: Phones, clients: tuple[str, ...], model_bytes: int) -> pl.DataFrame:
    """Return mean and coefficient of variation of every client's latencies over the rounds."""
    draws = [phones.draw_many(clients, number, model_bytes, model_bytes) for number in range(1, ROUNDS + 1)]
    rows = pl.concat(
        pl.DataFrame({"client": clients, "batch_s": d.batch_s, "network_s": d.download_s + d.upload_s}) for d in draws
    )
    by_client = rows.group_by("client", maintain_order=True).agg(
        *(pl.mean(name) for name in ("batch_s", "network_s")),
        *((pl.std(name) / pl.mean(name)).alias(f"{name[:-2]}_cv") for name in ("batch_s", "network_s")),
        (pl.median("network_s")).alias("network_median_s"),
    )
    classes = [phones.device_class(client) for client in by_client["client"]]
    columns = [pl.lit(task).alias("task"), pl.lit(phones.seed).alias("seed"), pl.Series("class", classes)]
    return by_client.with_columns(columns)


def average_classes(devices: pl.DataFrame) -> pl.DataFrame:
    """Return the share of the clients and the mean latencies by task and device class, over all seeds."""
    totals = devices.group_by("task", maintain_order=True).agg(pl.len().alias("all"))
    classes = devices.group_by("task", "class", maintain_order=True).agg(
        pl.len().alias("clients"), pl.mean("batch_s"), pl.mean("batch_cv"), pl.median("network_median_s"),
        pl.median("network_cv"),
    )  # fmt: skip
    order = {name: place for place, name in enumerate(CLASS_WEIGHTS)}
    joined = classes.join(totals, on="task", maintain_order="left")
    classes = joined.with_columns(share=pl.col("clients") / pl.col("all"))
    return classes.sort("task", pl.col("class").replace_strict(order, return_dtype=pl.Int64), maintain_order=True)


def _class_table(classes: pl.DataFrame) -> Table:
    lines = [
        (
            row["task"], row["class"], f"{row['share']:.1%}", f"{row['batch_s'] * 1000:.0f} ms",
            f"{row['batch_cv']:.3f}", f"{row['network_median_s']:.1f} s", f"{row['network_cv']:.2f}",
        )
        for row in classes.iter_rows(named=True)
    ]  # fmt: skip
    header = ("Task", "Class", "Share of clients", "Per batch", "CV", "Network per round", "CV")
    note = (
        f"CV: coefficient of variation of a client over {ROUNDS} rounds, mean (network: median) over clients and seeds."
    )
    return Table("Our simulated devices", header, lines, note)


def _phone_table() -> Table:
    lines = [tuple(map(str, (device, *rest))) for *rest, device in ((b, y, p, q, d) for b, y, d, p, q in PHONES)]
    return Table("The paper's phones (Table 4)", ("Device", "Manufacturer", "Year", "Processor", "Quantity"), lines)


def _find_variation(devices: pl.DataFrame) -> list[Finding]:
    """Return the only value that the paper reports about its simulated devices."""
    findings = []
    for (task,), rows in devices.group_by(["task"], maintain_order=True):
        by_seed = rows.group_by("seed", maintain_order=True).agg(pl.median("network_cv"))
        variation = Estimate.of(by_seed["network_cv"].to_list())
        ours = Measured(variation.mean, variation.low, variation.high)
        what = "CV of the communication latency (median client)"
        findings.append(Finding.of(str(task), what, ours, NETWORK_CV["simulated"], more_is_better=None))
    return findings


def _plot_classes(classes: pl.DataFrame) -> Figure:
    tasks = classes["task"].unique(maintain_order=True).to_list()
    figure, (axes,) = make_panels(["Seconds per batch"], "", "Seconds (log)", 1)
    for number, name in enumerate(CLASS_WEIGHTS):
        batch_s = {row["task"]: row["batch_s"] for row in classes.filter(pl.col("class") == name).to_dicts()}
        places = [place + 0.27 * (number - 1) for place, task in enumerate(tasks) if task in batch_s]
        axes.bar(places, [batch_s[task] for task in tasks if task in batch_s], 0.25, color=COLOURS[name], label=name)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_yscale("log")
    return add_legend(figure)


TABLE4 = Table4(name="table4", title="the devices", place="Table 4", tasks=TASKS, scale="paper")


THINNED = 3
"""Seconds between the points of a chart."""
LONGEST_S = 1200
"""Longest deadline in seconds."""


class Figure4(DeviceItem):
    """DDL-E over deadlines."""

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        spec = replace(work.request.spec(work.task), method="fedavg+1t", timing_only=True)
        task = spec.load_task()
        peaks, curves = [], []
        for seed in work.request.seeds:
            setup = build(replace(spec, seed=seed), task).server.setup
            times_s = expected_first_s(setup, setup.ledger, slice(None))
            deadline_s, ddle = peak_deadline(times_s[times_s <= LONGEST_S] if (times_s <= LONGEST_S).any() else times_s)
            peaks.append((task.name, work.request.scale, task.variant, len(times_s), seed, deadline_s, ddle))
            curves.append(_ddle_curve(task.name, seed, times_s))
        columns = ["task", "scale", "variant", "clients", "seed", "peak_deadline_s", "peak_ddle"]
        return {"peaks": pl.DataFrame(peaks, schema=columns, orient="row"), "ddle": pl.concat(curves)}

    def present(self, frames: Frames) -> Presentation:
        peaks = frames["peaks"]
        medians = peaks.group_by("task", maintain_order=True).agg(pl.median("peak_deadline_s", "peak_ddle")).to_dicts()
        result = {row.pop("task"): row for row in medians}
        points = [f"{task}: {at['peak_deadline_s']:.0f} s, DDL-E {at['peak_ddle']:.2f}" for task, at in result.items()]
        return Presentation(
            headline=f"Peak of DDL-E, median of the seeds: {'; '.join(points)}.",
            points=[f"{point} (peak, median of the seeds)" for point in points],
            charts=_ddle_charts(frames["ddle"]),
            tables=[_peak_table(peaks)],
            findings=_find_peaks(peaks),
            notes=(
                "The paper shows one draw of FEMNIST's and Shakespeare's devices and data. Ours are drawn by seed, "
                "with the data of the variant in the table.",
            ),
            figures={self.name: _plot_ddle(frames["ddle"])},
            json=result,
        )


def _ddle_curve(task: str, seed: int, times_s: FloatArray) -> pl.DataFrame:
    deadlines = np.arange(1, LONGEST_S + 1)
    done = np.searchsorted(np.sort(times_s), deadlines, side="right")
    columns = {"seed": np.full(LONGEST_S, seed), "deadline_s": deadlines, "completed": done, "ddle": done / deadlines}
    return pl.DataFrame({"task": [task] * LONGEST_S, **columns})


def _peak_table(peaks: pl.DataFrame) -> Table:
    lines = [
        (
            row["task"], f"{row['scale']}, {row['variant']}", str(row["clients"]), str(row["seed"]),
            f"{row['peak_deadline_s']:.0f} s", f"{row['peak_ddle']:.2f}", f"{row['peak_ddle'] / row['clients']:.5f}",
        )
        for row in peaks.iter_rows(named=True)
    ]  # fmt: skip
    return Table("Peaks", ("Task", "Data", "Clients", "Seed", "Deadline", "DDL-E", "DDL-E per client"), lines)


def _find_peaks(peaks: pl.DataFrame) -> list[Finding]:
    findings = []
    for (name,), rows in peaks.group_by(["task"], maintain_order=True):
        task = str(name)
        deadline, ddle = DDLE.get(task, (None, None))
        per_client = (
            None
            if ddle is None
            else Printed(ddle.mean / CLIENTS[task], None, 5, f"{ddle.place} divided by {CLIENTS[task]} users")
        )
        columns = {
            "deadline of peak DDL-E, s": (rows["peak_deadline_s"], deadline),
            "peak DDL-E": (rows["peak_ddle"], ddle),
            "peak DDL-E per client": (rows["peak_ddle"] / rows["clients"], per_client),
        }
        for what, (values, paper) in columns.items():
            estimate = Estimate.of(values.to_list())
            ours = Measured(estimate.mean, estimate.low, estimate.high)
            digits = 5 if "per client" in what else 2 if what[:4] == "peak" else 0
            findings.append(Finding.of(task, what, ours, paper, digits=digits, more_is_better=None))
    return findings


def _ddle_charts(ddle: pl.DataFrame) -> Charts:
    """Chart every third second, and the peak of each line."""
    panels: dict[str, dict[str, Line]] = {}
    for (task, seed), line in ddle.group_by(["task", "seed"], maintain_order=True):
        kept = line.filter((pl.col("deadline_s") % THINNED == 0) | (pl.col("ddle") == pl.col("ddle").max()))
        values = {"x": kept["deadline_s"].to_numpy(), "y": kept["ddle"].to_numpy()}
        panels.setdefault(str(task), {})[f"seed {seed}"] = values
    marks = {task: [{"x": DDLE[task][0].mean, "text": "the paper's peak"}] for task in panels if task in DDLE}
    about = "Number of clients that finish within a deadline, divided by the deadline in seconds."
    return line_charts(panels, "deadline (s)", "DDL-E (clients per second)", about, marks)


def _plot_ddle(ddle: pl.DataFrame) -> Figure:
    tasks = ddle["task"].unique(maintain_order=True).to_list()
    figure, panels = make_panels(tasks, "Deadline (s)", "DDL-E (clients per second)")
    for axes, task in zip(panels, tasks, strict=True):
        for (seed,), line in ddle.filter(pl.col("task") == task).group_by(["seed"], maintain_order=True):
            first = seed == ddle["seed"].min()
            axes.plot(
                line["deadline_s"], line["ddle"], color=BLUE, linewidth=1.0, alpha=0.9 if first else 0.3,
                label=f"seed {seed}" if first else "other seeds",
            )  # fmt: skip
        if task in DDLE:
            peak_s = DDLE[task][0].mean
            axes.axvline(peak_s, color=FAINT, linestyle=(0, (5, 3)), linewidth=0.9, label="the paper's peak")
        axes.set_xlim(0, LONGEST_S)
        axes.set_ylim(bottom=0)
    return add_legend(figure)


FIG4 = Figure4(name="fig4", title="the efficiency of deadlines (DDL-E)", place="Figure 4", tasks=TASKS, scale="paper")
