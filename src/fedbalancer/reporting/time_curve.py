"""Time to accuracy as a function of the target.

A method that is fastest at one target need not be fastest at others, so these curves complement a single number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from fedbalancer.core.types import FloatArray
from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.ratio import Arrival, median_s
from fedbalancer.reporting.results import Results, RunCurve
from fedbalancer.reporting.rule import CLOCK_SLACK, Rule, check_rule, select_evaluations, time_to_target

LEVELS = 50
SHARES = tuple(round(0.5 + 0.025 * step, 3) for step in range(25))
"""Targets from 50% to 110% of the reference's final accuracy."""
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
    """Compute the median time over seeds at which every method reaches every value of the metric.

    Only evaluations within the budget count: beyond it only the methods that are behind keep running, and would appear
    to be the only ones that reach an accuracy above the target. Runs that neither finished nor cover their budget are
    left out.

    Args:
        curves: The runs.
        budgets_s: Time budget by seed.
        levels: Values of the metric. Default: 50 levels from the lowest to the highest that any run reached.
        rule: "fair" or "paper".

    Returns:
        A row per method and level. `median_s` is the Kaplan-Meier median, null if fewer than half of the runs reach the
        level; the median is then above `above_s`. `reached` of `runs` runs reach the level.

    Raises:
        UnknownName: If there is no such rule.
    """
    checked = check_rule(rule)
    runs = [curve for curve in curves if curve.covers(budgets_s.get(curve.seed)) and budgets_s.get(curve.seed)]
    scored = [(min(run.last_s, budgets_s[run.seed]), _within(run, budgets_s[run.seed], checked)) for run in runs]
    sign = runs[0].metric.sign if runs else 1
    reached = [sign * frame["level"] for _, frame in scored if frame.height]
    targets = _spread_levels(reached) if levels is None else list(levels)
    rows = []
    for method in dict.fromkeys(run.method for run in runs):
        evaluations = [pair for run, pair in zip(runs, scored, strict=True) if run.method == method]
        for level in targets:
            arrivals = [_arrival(*pair, sign * level) for pair in evaluations]
            rows.append((method, level, *median_s(arrivals), sum(a.reached for a in arrivals), len(arrivals)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def target_medians(results: Results, comparison: Comparison) -> dict[str, list[float | None]]:
    """Compute, by method, the Kaplan-Meier median time to each target of `SHARES`, by the comparison's rule.

    Args:
        results: The runs.
        comparison: Their scores.

    Returns:
        A list by method; None where fewer than half of the runs reach the target.
    """
    arrivals: dict[str, list[list[Arrival]]] = {}
    scored = {seed.seed: seed for seed in comparison.seeds}
    for curve in results.curves:
        seed = scored.get(curve.seed)
        if seed is None or curve.method not in {score.method for score in seed.scores}:
            continue
        evals = select_evaluations(curve, results.budgets_s[curve.seed], comparison.rule, comparison.stamp)
        evals = evals.filter(evals["level"].is_not_null() & (evals["clock_s"] > 0))
        at_s, level = (evals[name].to_numpy().astype(np.float64) for name in ("at_s", "level"))
        targets = [comparison.metric.sign * comparison.metric.share_of(seed.final, share) for share in SHARES]
        arrivals.setdefault(curve.method, []).append([_first(at_s, level, each, curve.last_s) for each in targets])
    return {name: [median_s(list(seeds))[0] for seeds in zip(*runs, strict=True)] for name, runs in arrivals.items()}


def _spread_levels(reached: list[pl.Series]) -> list[float]:
    if not reached:
        return []
    values = pl.concat(reached)
    return list(np.linspace(float(values.min()), float(values.max()), LEVELS).tolist())  # type: ignore[arg-type]


def _within(run: RunCurve, budget_s: float, rule: Rule) -> pl.DataFrame:
    inside = (pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK)) & pl.col("level").is_not_null()
    return select_evaluations(run, budget_s, rule).filter(inside)


def _arrival(last_s: float, evaluations: pl.DataFrame, level: float) -> Arrival:
    time_s = time_to_target(evaluations, level)
    return Arrival(last_s, reached=False) if time_s is None else Arrival(time_s)


def _first(at_s: FloatArray, level: FloatArray, target: float, last_s: float) -> Arrival:
    reached = np.flatnonzero(level >= target)
    return Arrival(float(at_s[reached[0]])) if len(reached) else Arrival(last_s, reached=False)
