"""The charts of an item that compares methods: accuracy over the budget, speed-ups with the paper's beside ours, and
the time to each share of the target; from the tables that the item keeps, not from its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from fedbalancer.paper.item import Charts, Finding
from fedbalancer.paper.rows import full_target, speedup_of
from fedbalancer.reporting.charts import Chart, bars_spec, lines_spec, number, numbers
from fedbalancer.reporting.style import choose_looks, time_unit

SPEEDUP = ": speed-up"
"""How the findings call a method's speed-up."""
FLOOR = 0.6
"""The share of the target at which accuracies begin to be of interest: the beginnings of all methods are alike."""


def compared_charts(
    methods: pl.DataFrame, scores: pl.DataFrame, curves: pl.DataFrame, findings: Sequence[Finding]
) -> Charts:
    """Three charts for every task; of several groups the two about targets for each. `methods` has what is shown."""
    names = [*curves["method"].unique(maintain_order=True), *methods["method"].unique(maintain_order=True)]
    place = {name: m for m, name in enumerate(dict.fromkeys(names))}
    printed = {(found.task, found.what): found.paper.mean for found in findings if found.paper is not None}
    drawn: list[Chart] = []
    for (task,), mine in methods.group_by(["task"], maintain_order=True):
        drawn.append(_accuracy(str(task), mine, curves.filter(pl.col("task") == task), place, len(drawn)))
        several = mine["group"].n_unique() > 1
        for (group,), rows in mine.group_by(["group"], maintain_order=True):
            of = f"{task}, {group}" if several else str(task)
            seeds = scores.filter((pl.col("task") == task) & (pl.col("group") == group))
            drawn.append(_speedups(of, rows, full_target(seeds), place, printed, len(drawn)))
            drawn.append(_times(of, rows, place, len(drawn)))
    return Charts([chart for chart in drawn if not chart.empty], choose_looks(list(place)))


def _accuracy(task: str, rows: pl.DataFrame, curves: pl.DataFrame, place: Mapping[str, int], count: int) -> Chart:
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
    labels = {"share": "share of the time budget", "time": f"time ({unit}), the budget being the mean of the seeds'"}
    spec = lines_spec("test accuracy", labels, series, marks)
    spec["floor"] = number(FLOOR * target)
    spec["choices"] = {"share": "share of the time budget", "time": "time"}
    about = "Accuracy on the test data." + (
        " Lines: mean over seeds. Bands: lowest to highest seed." if seeds > 1 else ""
    )
    about += f" Dotted: the target, mean over seeds. What is below {FLOOR:.0%} of it is cut off."
    return Chart(f"accuracy-{count}", f"{task}: accuracy", about, spec, wide=True)


def _speedups(
    of: str, rows: pl.DataFrame, seeds: pl.DataFrame, place: Mapping[str, int], printed: Mapping[Any, float], count: int
) -> Chart:
    """Every method of a group with its interval, its seeds, and what the paper printed."""
    bars, marked = [], False
    for row in full_target(rows).iter_rows(named=True):
        ours, paper = speedup_of(row), printed.get((row["task"], row["method"] + SPEEDUP))
        found = seeds.filter(pl.col("method") == row["method"])["ratio"].drop_nulls().to_list()
        text = f"{ours.bound} {ours.mean:.2f}×".strip() if ours.mean and row["reached"] else "never"
        bar = {"m": place[row["method"]], "label": row["method"], "parts": [number(ours.mean)], "text": text,
               "dots": [number(ratio) for ratio in found]}  # fmt: skip
        if ours.high is not None and ours.low is not None:
            bar["range"] = [number(ours.low), number(ours.high)]
        if paper:
            bar["mark"], marked = number(paper), True
        bars.append(bar)
    spec = bars_spec("times as fast", [{"label": "mean"}], bars) | {"line": 1, "log": 1, "interval": "95% interval"}
    about = (
        "How many times as fast as the reference the whole target was reached, on a scale of ratios. Bars, from 1 to"
    )
    about += " the stroke: mean. Lines: 95% interval. Dots: seeds; one that never came there stands at its bound."
    if marked:
        spec["marked"] = "the paper's"
        about += " Diamonds: the paper's figure."
    return Chart(f"speedup-{count}", f"{of}: speed-up to the target", about, spec)


def _times(of: str, rows: pl.DataFrame, place: Mapping[str, int], count: int) -> Chart:
    """The median time to each share of the target, so that no single target decides."""
    per_unit, unit = time_unit(float(rows["median_s"].max() or 0.0))  # type: ignore[arg-type]
    series = []
    for (method,), mine in rows.group_by(["method"], maintain_order=True):
        line = mine.sort("target_share")
        times = [None if value is None else number(value / per_unit) for value in line["median_s"]]
        if any(time is not None for time in times):
            x = [number(100 * share) for share in line["target_share"]]
            series.append({"m": place[str(method)], "label": method, "on": {"target": {"x": x, "y": times, "n": 1}}})
    least = number(100 * float(rows["target_share"].min() or 0.0))  # type: ignore[arg-type]
    label = "share of the reference's final accuracy (%)"
    spec = lines_spec(f"median time ({unit})", {"target": label}, series) | {"zero": 1, "from": least, "whole": 1}
    about = "When each share of the target was reached, median over seeds; a line ends where half never came to."
    return Chart(f"times-{count}", f"{of}: time to accuracy", about, spec)
