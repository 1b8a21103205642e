"""Table 3: sensitivity of FedBalancer to w, lss, dss and p, from the runs of Table 1's grid.

For each value of a parameter, the speed-ups and accuracies of all runs with it are averaged over the settings of the
other parameters. The interval is over the means of the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.core.errors import BadSetting
from fedbalancer.paper.item import Charts, Finding, Frames, Item, Measured, Presentation, Request, Table, Work
from fedbalancer.paper.items.table1 import TABLE1, grid_methods
from fedbalancer.paper.printed import DISAGREE, GRID
from fedbalancer.paper.printed import TABLE3 as PRINTED
from fedbalancer.reporting.charts import Chart, bars_spec, number
from fedbalancer.reporting.plotting import INK, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.style import BLUE, choose_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Table3(Item):
    """Sensitivity to the settings."""

    def runs(self, request: Request) -> int:
        return TABLE1.runs(request)

    def check(self, request: Request) -> None:
        if not request.grid:
            raise BadSetting("table3 needs the runs over Table 2's settings; omit --no-grid")
        TABLE1.check(request)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        scores = TABLE1.measure(work)["scores"]
        return {"sensitivity": sensitivity(scores), "scores": scores}

    def present(self, frames: Frames) -> Presentation:
        rows = frames["sensitivity"].to_dicts()
        return Presentation(
            headline=_write_headline(frames["sensitivity"]),
            charts=_charts(rows),
            tables=[_table(frames["sensitivity"])],
            findings=list(_find_settings(rows)),
            notes=("The paper shows FEMNIST and Reddit; its ± is over settings and seeds together.", *DISAGREE),
            figures={self.name: _figure(frames["sensitivity"])},
            json={f"{row['task']} {row['parameter']}={row['value']:g}": row["ratio"] for row in rows},
        )


def sensitivity(scores: pl.DataFrame) -> pl.DataFrame:
    """Average speed-up and accuracy for each value of each parameter, over the settings of the others."""
    settings = grid_methods()
    grid = scores.filter(pl.col("method").is_in(list(settings)) & (pl.col("target_share") == 1.0))
    rows = []
    for parameter, values in GRID.items():
        for value in values:
            names = [name for name, values_of in settings.items() if values_of[parameter] == value]
            runs = grid.filter(pl.col("method").is_in(names))
            by_seed = runs.group_by("seed", maintain_order=True).agg(pl.mean("ratio"), pl.mean("accuracy"))
            rows.append(
                {"task": scores["task"][0], "parameter": parameter, "value": float(value), **_average(runs, by_seed)}
            )
    return pl.DataFrame(rows)


def _average(runs: pl.DataFrame, by_seed: pl.DataFrame) -> dict[str, Any]:
    ratio, accuracy = Estimate.of(by_seed["ratio"].to_list()), Estimate.of(by_seed["accuracy"].to_list())
    return {
        "runs": runs.height, "unreached": int(runs["censored"].sum()), "ratio": ratio.mean,
        "ratio_std": runs["ratio"].std(), "ratio_low": ratio.low, "ratio_high": ratio.high,
        "accuracy": accuracy.mean, "accuracy_std": runs["accuracy"].std(), "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
    }  # fmt: skip


def _find_settings(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        speedup, accuracy = PRINTED.get((row["task"], row["parameter"], row["value"]), (None, None))
        what = f"{row['parameter']} = {row['value']:g}"
        ratios = Measured(row["ratio"], row["ratio_low"], row["ratio_high"])
        yield Finding.of(row["task"], f"{what}: speed-up", ratios, speedup)
        accuracies = Measured(row["accuracy"], row["accuracy_low"], row["accuracy_high"])
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
        "± is the standard deviation over settings and seeds, as in the paper. A run that never reaches the target "
        "counts with its bound (by the paper's rule: with 0)."
    )
    return Table("By setting", ("Task", "Setting", "Speed-up", "Accuracy", "Target not reached"), lines, note)


def _write_headline(frame: pl.DataFrame) -> str:
    points = []
    for (task,), rows in frame.group_by(["task"], maintain_order=True):
        best = rows.sort("ratio", descending=True).group_by("parameter", maintain_order=True).first()
        values = ", ".join(
            f"{row['parameter']} = {row['value']:g} ({row['ratio']:.2f})" for row in best.sort("parameter").to_dicts()
        )
        points.append(f"{task}: fastest with {values}")
    return "; ".join(points) + "."


def _charts(rows: list[dict[str, Any]]) -> Charts:
    """Chart the speed-up by value of each parameter, a chart per task."""
    place = {parameter: m for m, parameter in enumerate(GRID)}
    charts: list[Chart] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        bars = [_bar(row, place[row["parameter"]]) for row in rows if row["task"] == task]
        spec = bars_spec("times as fast as the best FedAvg", [{"label": "mean"}], bars)
        about = "Bars: mean over the other settings and over seeds. Lines: 95% interval over seeds."
        if any("mark" in bar for bar in bars):
            about += " Diamonds: the paper's value."
        more = {"line": 1, "interval": "95% interval", "marked": "the paper's"}
        charts.append(Chart(f"settings-{len(charts)}", f"{task}: speed-up by setting", about, spec | more, wide=True))
    return Charts(charts, choose_looks(list(GRID)))


def _bar(row: dict[str, Any], m: int) -> dict[str, Any]:
    speedup, _ = PRINTED.get((row["task"], row["parameter"], row["value"]), (None, None))
    bar = {"m": m, "label": f"{row['parameter']} = {row['value']:g}", "parts": [number(row["ratio"])],
           "text": f"{row['ratio']:.2f}×"}  # fmt: skip
    if row["ratio_low"] is not None:
        bar["range"] = [number(max(row["ratio_low"], 0.0)), number(row["ratio_high"])]
    return bar if speedup is None else bar | {"mark": number(speedup.mean)}


def _figure(frame: pl.DataFrame) -> Figure:
    tasks = frame["task"].unique(maintain_order=True).to_list()
    figure, panels = make_panels(
        [f"{task}: speed-up by setting" for task in tasks], "", "Speed-up over the best FedAvg", 1
    )
    for axes, task in zip(panels, tasks, strict=True):
        rows = frame.filter(pl.col("task") == task)
        labels = [f"{row['parameter']}={row['value']:g}" for row in rows.to_dicts()]
        axes.bar(range(len(labels)), rows["ratio"], 0.7, color=BLUE, alpha=0.85)
        errors = rows["ratio_std"].fill_null(0.0)
        axes.errorbar(range(len(labels)), rows["ratio"], yerr=errors, fmt="none", ecolor=INK, capsize=2, linewidth=0.9)
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    return figure


TABLE3 = Table3(name="table3", title="sensitivity of FedBalancer to its settings", place="Table 3")
