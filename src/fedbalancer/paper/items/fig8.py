"""Figure 8: how long the phones of the test bed trained and were on the network, round by round.

The seconds are those that the paper's authors recorded on their 21 phones, about ten rounds in each of three sittings:
the same that the emulated phones of `fedbalancer testbed` take. Which number is which model of Table 4 was not
recorded, so that the two phones of the figure cannot be named; ours are the phones with the steadiest and the least
steady network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedbalancer.errors import MissingData
from fedbalancer.paper.item import Charts, Finding, Frames, Presentation, Table, Work
from fedbalancer.paper.lines import lines_charts
from fedbalancer.paper.printed import NETWORK_CV, NETWORK_PEAK
from fedbalancer.paper.request import Request
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting.plotting import add_legend, make_panels
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import BLUE, ORANGE
from fedbalancer.testbed.phones import FILE, SITTINGS, find_file, read_phones

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "har"


@dataclass(frozen=True)
class Figure8:
    """Latencies of the bed."""

    name: str = "fig8"
    title: str = "latencies of the test bed's phones"
    place: str = "Figure 8"
    tasks: tuple[str, ...] = (TASK,)
    scale: str = "paper"
    rule: Rule = "fair"

    def runs(self, request: Request) -> int:
        return 0

    def check(self, request: Request) -> None:
        if find_file() is None:
            raise MissingData(f"fig8 needs the recorded phones, {FILE}, in the folder that FEDBALANCER_DATA names")

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        file = find_file()
        assert file is not None  # `check` was asked
        if work.task != TASK:
            work.notes.append(f"the phones were recorded on {TASK} only; {work.task} has no rows of its own")
        rows = [
            (TASK, sitting, phone.name, number, float(batch_s), float(network_s))
            for sitting in range(len(SITTINGS))
            for phone in read_phones(file, sitting)
            for number, (batch_s, network_s) in enumerate(zip(phone.batch_s, phone.network_s, strict=True))
        ]
        columns = ["task", "sitting", "phone", "round", "batch_s", "network_s"]
        return {"latencies": pl.DataFrame(rows, schema=columns, orient="row")}

    def present(self, frames: Frames) -> Presentation:
        phones = by_phone(frames["latencies"])
        network, batch = (float(np.mean(phones[f"{name}_cv"].to_numpy())) for name in ("network", "batch"))
        peak = float(np.max(phones["network_peak"].to_numpy()))
        return Presentation(
            headline=f"Coefficient of variation, mean over phones and sittings: {batch:.3f} in training, {network:.2f} "
            f"on the network; the longest round on the network took {peak:.2f} times the phone's mean.",
            charts=_charts(frames["latencies"], phones),
            tables=[_table(phones)],
            findings=_findings(phones),
            notes=(
                "The seconds are recorded ones, of the authors' phones; nothing here was simulated or measured anew.",
                "The paper's 0.40 is of its simulated networks: see table4.",
            ),
            figures={self.name: _figure(frames["latencies"], phones)},
            json={"network_cv": network, "batch_cv": batch, "network_peak": peak},
        )


def by_phone(latencies: pl.DataFrame) -> pl.DataFrame:
    """Mean and coefficient of variation of every phone in every sitting."""
    aggregated = latencies.group_by("task", "sitting", "phone", maintain_order=True).agg(
        pl.len().alias("rounds"), pl.mean("batch_s", "network_s"),
        *((pl.std(f"{name}_s") / pl.mean(f"{name}_s")).alias(f"{name}_cv") for name in ("batch", "network")),
        (pl.max("network_s") / pl.mean("network_s")).alias("network_peak"),
    )  # fmt: skip
    return aggregated.sort("sitting", pl.col("phone").cast(pl.Int64))


def _table(phones: pl.DataFrame) -> Table:
    lines = [
        (
            row["phone"], str(row["sitting"]), str(row["rounds"]), f"{row['batch_s'] * 1000:.0f} ms",
            f"{row['batch_cv']:.3f}", f"{row['network_s']:.1f} s", f"{row['network_cv']:.2f}",
        )
        for row in phones.iter_rows(named=True)
    ]  # fmt: skip
    header = ("Phone", "Sitting", "Rounds", "A batch", "CV", "Network, a round", "CV")
    return Table("Every phone in every sitting", header, lines)


def _findings(phones: pl.DataFrame) -> list[Finding]:
    """The interval is over phones and sittings."""
    from fedbalancer.reporting.ratio import Estimate

    cv = Estimate.of(phones["network_cv"].drop_nulls().to_list())
    peak = Ours(float(np.max(phones["network_peak"].to_numpy())))
    return [
        Finding.of(TASK, "CV of the network's seconds, mean of the phones", Ours(cv.mean, cv.low, cv.high),
                   NETWORK_CV["bed"], more_is_better=None),
        Finding.of(TASK, "longest over mean network seconds", peak, NETWORK_PEAK, more_is_better=None),
    ]  # fmt: skip


NETWORK, TRAINING = "network", "training, 100 batches"


def _chosen(latencies: pl.DataFrame, phones: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The rounds of the phones with the steadiest and the least steady network, by title."""
    ordered, found = phones.sort("network_cv"), {}
    for word, row in {"steadiest": ordered.row(0, named=True), "least steady": ordered.row(-1, named=True)}.items():
        title = f"phone {row['phone']}, sitting {row['sitting']}: {word} network"
        mine = (pl.col("phone") == row["phone"]) & (pl.col("sitting") == row["sitting"])
        found[title] = latencies.filter(mine).with_columns(hundred_s=100 * pl.col("batch_s"))
    return found


def _charts(latencies: pl.DataFrame, phones: pl.DataFrame) -> Charts:
    columns = {NETWORK: "network_s", TRAINING: "hundred_s"}
    drawn = {
        title: {label: {"x": mine["round"].to_numpy(), "y": mine[name].to_numpy()} for label, name in columns.items()}
        for title, mine in _chosen(latencies, phones).items()
    }
    return lines_charts(drawn, "round", "seconds", "Seconds on the network, and of training, as they were recorded.")


def _figure(latencies: pl.DataFrame, phones: pl.DataFrame) -> Figure:
    chosen = _chosen(latencies, phones)
    figure, grid = make_panels(list(chosen), "Round", "Seconds", 2)
    for axes, mine in zip(grid, chosen.values(), strict=True):
        axes.plot(mine["round"], mine["network_s"], "o-", color=ORANGE, linewidth=1.2, markersize=3, label=NETWORK)
        axes.plot(mine["round"], mine["hundred_s"], "s-", color=BLUE, linewidth=1.2, markersize=3, label=TRAINING)
        axes.set_ylim(bottom=0)
    return add_legend(figure)


ITEM = Figure8()
