"""The charts of items: accuracy, speed-ups and time to accuracy of methods, and plain line charts.

They are made from the tables that an item stores, not from its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from fedbalancer.core.types import FloatArray
from fedbalancer.paper.item import Charts, Finding
from fedbalancer.paper.scores import full_target, read_speedup
from fedbalancer.reporting.charts import Chart, bars_spec, lines_spec, number, numbers
from fedbalancer.reporting.style import choose_looks, time_unit

SPEEDUP = ": speed-up"
"""Suffix of the findings about a method's speed-up."""
FLOOR = 0.6
"""Start of the accuracy axis as a share of the target; below it all methods are alike."""

Line = Mapping[str, FloatArray]
"""x and y and, with a band, low and high."""


def comparison_charts(
    methods: pl.DataFrame, scores: pl.DataFrame, curves: pl.DataFrame, findings: Sequence[Finding]
) -> Charts:
    """Make three charts per task: accuracy, speed-up and time to accuracy; the last two for each group.

    Args:
        methods: The table `methods`, with the rows to show.
        scores: The table `scores`.
        curves: The table `curves`.
        findings: Findings with the paper's speed-ups.
    """
    names = [*curves["method"].unique(maintain_order=True), *methods["method"].unique(maintain_order=True)]
    place = {name: m for m, name in enumerate(dict.fromkeys(names))}
    printed = {(finding.task, finding.what): finding.paper.mean for finding in findings if finding.paper is not None}
    charts: list[Chart] = []
    for (task,), task_rows in methods.group_by(["task"], maintain_order=True):
        charts.append(_accuracy_chart(str(task), task_rows, curves.filter(pl.col("task") == task), place, len(charts)))
        several = task_rows["group"].n_unique() > 1
        for (group,), rows in task_rows.group_by(["group"], maintain_order=True):
            title = f"{task}, {group}" if several else str(task)
            seeds = scores.filter((pl.col("task") == task) & (pl.col("group") == group))
            charts.append(_speedup_chart(title, rows, full_target(seeds), place, printed, len(charts)))
            charts.append(_times_chart(title, rows, place, len(charts)))
    return Charts([chart for chart in charts if not chart.empty], choose_looks(list(place)))


def line_charts(
    panels: Mapping[str, Mapping[str, Line]], x: str, y: str, about: str,
    marks: Mapping[str, Sequence[dict[str, Any]]] | None = None, *, complete: bool = True,
) -> Charts:  # fmt: skip
    """Make a line chart per panel.

    Args:
        panels: Lines by label, by title.
        x: Label of the x axis.
        y: Label of the y axis.
        about: Caption of all charts.
        marks: Lines across a chart, by title.
        complete: Whether the charts replace the item's figure.
    """
    place = {label: m for m, label in enumerate(dict.fromkeys(label for lines in panels.values() for label in lines))}
    charts: list[Chart] = []
    for title, lines in panels.items():
        series = [{"m": place[label], "label": label, "on": {"x": _line_values(line)}} for label, line in lines.items()]
        spec = lines_spec(y, {"x": x}, series, (marks or {}).get(title, ())) | {"zero": 1}
        charts.append(Chart(f"lines-{len(charts)}", title, about, spec, wide=len(panels) == 1))
    return Charts(charts, choose_looks(list(place)), complete)


def _line_values(line: Line) -> dict[str, Any]:
    return {name: numbers(values) for name, values in line.items()} | {"n": 2 if "low" in line else 1}


def _accuracy_chart(task: str, rows: pl.DataFrame, curves: pl.DataFrame, place: Mapping[str, int], count: int) -> Chart:
    whole = full_target(rows)
    budget_s, seeds = float(whole["budget_s"][0]), int(whole["seeds"][0])
    per_unit, unit = time_unit(budget_s)
    series = []
    for (method,), line in curves.group_by(["method"], maintain_order=True):
        share = line["share"].to_numpy()
        values = {"y": numbers(line["accuracy"].to_numpy()), "n": seeds}
        if seeds > 1:
            values |= {name: numbers(line[name].to_numpy()) for name in ("low", "high")}
        on = {"share": {"x": numbers(share), **values}, "time": {"x": numbers(share * budget_s / per_unit), **values}}
        series.append({"m": place[str(method)], "label": method, "on": on})
    target = float(whole["target"][0])
    marks = [{"y": number(target), "text": f"target {target:.3f}"}]
    labels = {"share": "share of the time budget", "time": f"time ({unit}), with the mean budget of the seeds"}
    spec = lines_spec("test accuracy", labels, series, marks)
    spec["floor"] = number(FLOOR * target)
    spec["choices"] = {"share": "share of the time budget", "time": "time"}
    bands = " Lines: mean over seeds. Bands: lowest to highest seed." if seeds > 1 else ""
    about = (
        f"Accuracy on the test data.{bands} Dotted: the target, mean over seeds. The axis starts at {FLOOR:.0%} of it."
    )
    return Chart(f"accuracy-{count}", f"{task}: accuracy", about, spec, wide=True)


def _speedup_chart(
    title: str, rows: pl.DataFrame, seeds: pl.DataFrame, place: Mapping[str, int], printed: Mapping[Any, float],
    count: int,
) -> Chart:  # fmt: skip
    """Chart the speed-up of every method of a group with its interval, its seeds, and the paper's value."""
    bars, marked = [], False
    for row in full_target(rows).iter_rows(named=True):
        ours, paper = read_speedup(row), printed.get((row["task"], row["method"] + SPEEDUP))
        ratios = seeds.filter(pl.col("method") == row["method"])["ratio"].drop_nulls().to_list()
        text = f"{ours.bound} {ours.mean:.2f}×".strip() if ours.mean and row["reached"] else "never"
        bar = {"m": place[row["method"]], "label": row["method"], "parts": [number(ours.mean)], "text": text,
               "dots": [number(ratio) for ratio in ratios]}  # fmt: skip
        if ours.high is not None and ours.low is not None:
            bar["range"] = [number(ours.low), number(ours.high)]
        if paper:
            bar["mark"], marked = number(paper), True
        bars.append(bar)
    spec = bars_spec("times as fast", [{"label": "mean"}], bars) | {"line": 1, "log": 1, "interval": "95% interval"}
    about = "How many times as fast as the reference the whole target was reached (log scale). Bars: mean. Lines: 95%"
    about += " interval. Dots: seeds; a seed that never reaches the target is drawn at its bound."
    if marked:
        spec["marked"] = "the paper's"
        about += " Diamonds: the paper's value."
    return Chart(f"speedup-{count}", f"{title}: speed-up to the target", about, spec)


def _times_chart(title: str, rows: pl.DataFrame, place: Mapping[str, int], count: int) -> Chart:
    """Chart the median time to each share of the target."""
    per_unit, unit = time_unit(float(rows["median_s"].max() or 0.0))  # type: ignore[arg-type]
    series = []
    for (method,), method_rows in rows.group_by(["method"], maintain_order=True):
        line = method_rows.sort("target_share")
        times = [None if value is None else number(value / per_unit) for value in line["median_s"]]
        if any(time is not None for time in times):
            x = [number(100 * share) for share in line["target_share"]]
            series.append({"m": place[str(method)], "label": method, "on": {"target": {"x": x, "y": times, "n": 1}}})
    least = number(100 * float(rows["target_share"].min() or 0.0))  # type: ignore[arg-type]
    label = "share of the reference's final accuracy (%)"
    spec = lines_spec(f"median time ({unit})", {"target": label}, series) | {"zero": 1, "from": least, "whole": 1}
    about = (
        "When each share of the target is reached, median over seeds. A line ends where fewer than half of the seeds"
    )
    about += " reach it."
    return Chart(f"times-{count}", f"{title}: time to accuracy", about, spec)
