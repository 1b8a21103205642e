"""Table 3: how sensitive FedBalancer is to w, lss, dss and p, from the runs of Table 1's grid.

A parameter is held at a value, and the speed-ups and accuracies of all runs with it are averaged over the settings of
the others. The mean of each seed is one value: the interval is over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.errors import BadSetting
from fedbalancer.paper.grid import grid_methods
from fedbalancer.paper.item import Charts, Finding, Frames, Presentation, Table, Work
from fedbalancer.paper.items.table1 import ITEM as WHOLE
from fedbalancer.paper.printed import DISAGREE, GRID, TABLE3
from fedbalancer.paper.request import Request
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting.charts import Chart, bars_spec, number
from fedbalancer.reporting.plotting import INK, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import BLUE, choose_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table3:
    """Sensitivity to the settings."""

    name: str = "table3"
    title: str = "how sensitive FedBalancer is to its settings"
    place: str = "Table 3"
    tasks: tuple[str, ...] = ("har",)
    scale: str = "small"
    rule: Rule = "fair"

    def runs(self, request: Request) -> int:
        return WHOLE.runs(request)

    def check(self, request: Request) -> None:
        if not request.grid:
            raise BadSetting("table3 is made of the runs over Table 2's settings; leave out --no-grid")
        WHOLE.check(request)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        scores = WHOLE.measure(work)["scores"]
        return {"sensitivity": sensitivity(scores), "scores": scores}

    def present(self, frames: Frames) -> Presentation:
        rows = frames["sensitivity"].to_dicts()
        return Presentation(
            headline=_headline(frames["sensitivity"]),
            charts=_charts(rows),
            tables=[_table(frames["sensitivity"])],
            findings=list(_findings(rows)),
            notes=("The paper shows FEMNIST and Reddit; its ± is over settings and seeds together.", *DISAGREE),
            figures={self.name: _figure(frames["sensitivity"])},
            json={f"{row['task']} {row['parameter']}={row['value']:g}": row["ratio"] for row in rows},
        )


def sensitivity(scores: pl.DataFrame) -> pl.DataFrame:
    """A row for each parameter and value: speed-up and accuracy over the settings of the others."""
    settings = grid_methods()
    grid = scores.filter(pl.col("method").is_in(list(settings)) & (pl.col("target_share") == 1.0))
    rows = []
    for parameter, values in GRID.items():
        for value in values:
            names = [name for name, chosen in settings.items() if chosen[parameter] == value]
            held = grid.filter(pl.col("method").is_in(names))
            by_seed = held.group_by("seed", maintain_order=True).agg(pl.mean("ratio"), pl.mean("accuracy"))
            rows.append(
                {"task": scores["task"][0], "parameter": parameter, "value": float(value), **_means(held, by_seed)}
            )
    return pl.DataFrame(rows)


def _means(held: pl.DataFrame, by_seed: pl.DataFrame) -> dict[str, Any]:
    ratio, accuracy = Estimate.of(by_seed["ratio"].to_list()), Estimate.of(by_seed["accuracy"].to_list())
    return {
        "runs": held.height, "unreached": int(held["censored"].sum()), "ratio": ratio.mean,
        "ratio_std": held["ratio"].std(), "ratio_low": ratio.low, "ratio_high": ratio.high,
        "accuracy": accuracy.mean, "accuracy_std": held["accuracy"].std(), "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
    }  # fmt: skip


def _findings(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        speedup, accuracy = TABLE3.get((row["task"], row["parameter"], row["value"]), (None, None))
        what = f"{row['parameter']} = {row['value']:g}"
        ratios = Ours(row["ratio"], row["ratio_low"], row["ratio_high"])
        yield Finding.of(row["task"], f"{what}: speed-up", ratios, speedup)
        accuracies = Ours(row["accuracy"], row["accuracy_low"], row["accuracy_high"])
        yield Finding.of(row["task"], f"{what}: accuracy", accuracies, accuracy, ratio=False, digits=3)


def _table(frame: pl.DataFrame) -> Table:
    lines = [
        (
            row["task"], f"{row['parameter']} = {row['value']:g}", f"{row['ratio']:.2f} ± {row['ratio_std']:.2f}",
            f"{row['accuracy']:.3f} ± {row['accuracy_std']:.3f}", f"{row['unreached']} of {row['runs']}",
        )
        for row in frame.with_columns(pl.col("ratio_std", "accuracy_std").fill_null(0.0)).iter_rows(named=True)
    ]  # fmt: skip
    note = (
        "± is the standard deviation over settings and seeds, as in the paper; a target not reached counts as its "
        "bound (by the paper's rule: as 0)."
    )
    return Table("By setting", ("Task", "Setting", "Speed-up", "Accuracy", "Target not reached"), lines, note)


def _headline(frame: pl.DataFrame) -> str:
    said = []
    for (task,), mine in frame.group_by(["task"], maintain_order=True):
        best = mine.sort("ratio", descending=True).group_by("parameter", maintain_order=True).first()
        words = ", ".join(
            f"{row['parameter']} = {row['value']:g} ({row['ratio']:.2f})" for row in best.sort("parameter").to_dicts()
        )
        said.append(f"{task}: fastest with {words}")
    return "; ".join(said) + "."


def _charts(rows: list[dict[str, Any]]) -> Charts:
    """The speed-up with every value of a parameter, a chart for each task."""
    place = {parameter: m for m, parameter in enumerate(GRID)}
    drawn: list[Chart] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        bars = [_bar(row, place[row["parameter"]]) for row in rows if row["task"] == task]
        spec = bars_spec("times as fast as the best FedAvg", [{"label": "mean"}], bars)
        about = "Bars: mean over the settings of the others and over seeds. Lines: 95% interval over seeds."
        if any("mark" in bar for bar in bars):
            about += " Diamonds: the paper's figure."
        more = {"line": 1, "interval": "95% interval", "marked": "the paper's"}
        drawn.append(Chart(f"settings-{len(drawn)}", f"{task}: speed-up by setting", about, spec | more, wide=True))
    return Charts(drawn, choose_looks(list(GRID)))


def _bar(row: dict[str, Any], m: int) -> dict[str, Any]:
    speedup, _ = TABLE3.get((row["task"], row["parameter"], row["value"]), (None, None))
    bar = {"m": m, "label": f"{row['parameter']} = {row['value']:g}", "parts": [number(row["ratio"])],
           "text": f"{row['ratio']:.2f}×"}  # fmt: skip
    if row["ratio_low"] is not None:
        bar["range"] = [number(max(row["ratio_low"], 0.0)), number(row["ratio_high"])]
    return bar if speedup is None else bar | {"mark": number(speedup.mean)}


def _figure(frame: pl.DataFrame) -> Figure:
    tasks = frame["task"].unique(maintain_order=True).to_list()
    figure, grid = make_panels(
        [f"{task}: speed-up by setting" for task in tasks], "", "Speed-up over the best FedAvg", 1
    )
    for axes, task in zip(grid, tasks, strict=True):
        mine = frame.filter(pl.col("task") == task)
        labels = [f"{row['parameter']}={row['value']:g}" for row in mine.to_dicts()]
        axes.bar(range(len(labels)), mine["ratio"], 0.7, color=BLUE, alpha=0.85)
        errors = mine["ratio_std"].fill_null(0.0)
        axes.errorbar(range(len(labels)), mine["ratio"], yerr=errors, fmt="none", ecolor=INK, capsize=2, linewidth=0.9)
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    return figure


ITEM = Table3()
