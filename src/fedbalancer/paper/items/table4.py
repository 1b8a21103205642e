"""Table 4: what the devices are. The paper's phones beside our device classes, as they are drawn for each task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from fedbalancer.devices import Network, Phones, resolve_latency
from fedbalancer.devices.phones import CLASS_WEIGHTS
from fedbalancer.paper.item import Finding, Frames, Presentation, Table, WithoutRuns, Work
from fedbalancer.paper.printed import NETWORK_CV, TABLE4
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting.plotting import add_legend, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.style import BLUE, GREEN, ORANGE
from fedbalancer.runs.simulation import build, resolve_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS = 100
"""Rounds over which latencies are drawn."""
COLOURS = {"slow": BLUE, "mid": ORANGE, "fast": GREEN}


@dataclass(frozen=True)
class Table4(WithoutRuns):
    """The devices of each task."""

    name: str = "table4"
    title: str = "what the devices are"
    place: str = "Table 4"

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        spec = replace(work.request.spec(work.task), method="fedavg+1t", timing_only=True)
        task = spec.load_task()
        settings, _ = resolve_spec(spec, task)
        frames = []
        for seed in range(work.request.seeds):
            engine = build(replace(spec, seed=seed), task).engine
            latency = task.latency if not isinstance(task.latency, str) else resolve_latency(settings.latency)
            phones = Phones(seed=seed, latency=latency, network=Network(seed=seed, floor=settings.network_floor))
            frames.append(_drawn(task.name, phones, tuple(sorted(task.sizes)), engine.down_bytes))
        return {
            "devices": pl.concat(frames).with_columns(scale=pl.lit(work.request.scale), variant=pl.lit(task.variant))
        }

    def present(self, frames: Frames) -> Presentation:
        classes = by_class(frames["devices"])
        shares = {
            row["class"]: row["share"]
            for row in classes.group_by("class", maintain_order=True).agg(pl.mean("share")).to_dicts()
        }
        said = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
        return Presentation(
            headline=f"Our clients are {said}: three classes of one device model, drawn anew for every seed; the "
            "paper's test bed was 21 phones of 13 models.",
            tables=[_ours(classes), _papers()],
            findings=_findings(frames["devices"]),
            notes=(
                "Table 4 is of the test bed. The simulations of the paper draw every client as one of three phones "
                f"({', '.join(f'{name} {weight}' for name, weight in CLASS_WEIGHTS.items())} of the phones counted).",
                "The paper's CV of 0.40 agrees with that of the nineteen networks' speeds (0.43 down, 0.38 up). The "
                "seconds of a transfer are one over a speed that may come near 0, and so vary more.",
            ),
            figures={self.name: _figure(classes)},
            json=classes.to_dicts(),
        )


def _drawn(task: str, phones: Phones, clients: tuple[str, ...], model_bytes: int) -> pl.DataFrame:
    """Mean and coefficient of variation of every client's latencies over the rounds."""
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


def by_class(devices: pl.DataFrame) -> pl.DataFrame:
    """Every class of every task: its share of the clients, and the means over its clients and all seeds."""
    totals = devices.group_by("task", maintain_order=True).agg(pl.len().alias("all"))
    found = devices.group_by("task", "class", maintain_order=True).agg(
        pl.len().alias("clients"), pl.mean("batch_s"), pl.mean("batch_cv"), pl.median("network_median_s"),
        pl.median("network_cv"),
    )  # fmt: skip
    order = {name: place for place, name in enumerate(CLASS_WEIGHTS)}
    found = found.join(totals, on="task", maintain_order="left").with_columns(share=pl.col("clients") / pl.col("all"))
    return found.sort("task", pl.col("class").replace_strict(order, return_dtype=pl.Int64), maintain_order=True)


def _ours(classes: pl.DataFrame) -> Table:
    lines = [
        (
            row["task"], row["class"], f"{row['share']:.1%}", f"{row['batch_s'] * 1000:.0f} ms",
            f"{row['batch_cv']:.3f}", f"{row['network_median_s']:.1f} s", f"{row['network_cv']:.2f}",
        )
        for row in classes.iter_rows(named=True)
    ]  # fmt: skip
    header = ("Task", "Class", "Share of clients", "A batch", "CV", "Network, a round", "CV")
    note = (
        f"CV: coefficient of variation of a client over {ROUNDS} rounds; mean (network: median) over clients and seeds."
    )
    return Table("Our simulated devices", header, lines, note)


def _papers() -> Table:
    lines = [tuple(map(str, (device, *rest))) for *rest, device in ((b, y, p, q, d) for b, y, d, p, q in TABLE4)]
    return Table("The paper's phones (Table 4)", ("Device", "Builder", "Year", "Processor", "Quantity"), lines)


def _findings(devices: pl.DataFrame) -> list[Finding]:
    """The one figure that the paper gives of its simulated devices."""
    findings = []
    for (task,), mine in devices.group_by(["task"], maintain_order=True):
        found = Estimate.of(
            mine.group_by("seed", maintain_order=True).agg(pl.median("network_cv"))["network_cv"].to_list()
        )
        ours = Ours(found.mean, found.low, found.high)
        what = "CV of the communication latency (median client)"
        findings.append(Finding.of(str(task), what, ours, NETWORK_CV["simulated"], more_is_better=None))
    return findings


def _figure(classes: pl.DataFrame) -> Figure:
    tasks = classes["task"].unique(maintain_order=True).to_list()
    figure, grid = make_panels(["Seconds a batch"], "", "Seconds (log)", 1)
    for number, name in enumerate(CLASS_WEIGHTS):
        mine = {row["task"]: row["batch_s"] for row in classes.filter(pl.col("class") == name).to_dicts()}
        places = [place + 0.27 * (number - 1) for place, task in enumerate(tasks) if task in mine]
        grid[0].bar(places, [mine[task] for task in tasks if task in mine], 0.25, color=COLOURS[name], label=name)
    grid[0].set_xticks(range(len(tasks)), tasks)
    grid[0].set_yscale("log")
    return add_legend(figure)


ITEM = Table4()
