"""Time-to-accuracy as a function of the target: who is first at one lucky number need not be first at the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from fedbalancer.report.ratio import Arrival, median_s
from fedbalancer.report.rule import CLOCK_SLACK, Rule, checked_rule, points, time_to_accuracy
from fedbalancer.report.stored import RunCurve

LEVELS = 50
SCHEMA = {
    "method": pl.String, "accuracy": pl.Float64, "median_s": pl.Float64, "above_s": pl.Float64, "reached": pl.Int64,
    "runs": pl.Int64,
}  # fmt: skip


def time_curve(
    curves: Iterable[RunCurve],
    budgets_s: Mapping[int, float],
    *,
    levels: Sequence[float] | None = None,
    rule: str = "fair",
) -> pl.DataFrame:
    """For every method and accuracy the median time over seeds at which it is reached, by the rule's notion of that.

    A row per method and level: `median_s` is the Kaplan-Meier median, null if half of the runs never came there (it
    then lies above `above_s`); `reached` of `runs` came there. `levels` are accuracies, unless told 50 from the lowest
    to the highest that any run reached. Only what happened within the budget counts: beyond it those alone go on that
    are behind, and would seem to be the only ones to come to a level above the target. Runs that neither ended nor came
    to the end of their budget are left out.
    """
    by = checked_rule(rule)
    runs = [curve for curve in curves if curve.covers(budgets_s.get(curve.seed)) and budgets_s.get(curve.seed)]
    found = [(min(run.last_s, budgets_s[run.seed]), _within(run, budgets_s[run.seed], by)) for run in runs]
    at = _levels([frame["level"] for _, frame in found if frame.height]) if levels is None else list(levels)
    rows = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = [each for run, each in zip(runs, found, strict=True) if run.method == method]
        for level in at:
            arrivals = [_arrival(*each, level) for each in mine]
            rows.append((method, level, *median_s(arrivals), sum(each.reached for each in arrivals), len(arrivals)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _levels(reached: list[pl.Series]) -> list[float]:
    if not reached:
        return []
    everything = pl.concat(reached)
    return list(np.linspace(float(everything.min()), float(everything.max()), LEVELS).tolist())  # type: ignore[arg-type]


def _within(run: RunCurve, budget_s: float, rule: Rule) -> pl.DataFrame:
    inside = (pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK)) & pl.col("level").is_not_null()
    return points(run, budget_s, rule).filter(inside)


def _arrival(last_s: float, found: pl.DataFrame, level: float) -> Arrival:
    time_s = time_to_accuracy(found, level)
    return Arrival(last_s, reached=False) if time_s is None else Arrival(time_s)
