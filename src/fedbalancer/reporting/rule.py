"""The two scoring rules: which evaluations count, the final value, and when a target is reached.

The rule `fair` uses evaluations on a grid of simulated seconds. A target is reached when the mean of the last three
evaluations on the grid is at or above it; the time is that of the last of the three. The rule `paper` uses the
evaluations after rounds; a target is reached at the first evaluation at or above it.

Values are those of the run's metric, usually the accuracy, times its sign, so that higher is better for any metric.
"""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import Literal, get_args

import polars as pl

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.metrics import Metric
from fedbalancer.reporting.results import RunCurve

Stamp = Literal["end", "start"]
Rule = Literal["fair", "paper"]
BUDGET_METHOD = "fedavg+1t"
HELD = 3
"""Number of consecutive evaluations whose mean must be at the target."""
GRID = 50
"""Number of grid evaluations within a budget, unless `eval_every_s` is set."""
CLOCK_SLACK = 1e-9
"""Relative tolerance for times, so that rounding of a budget cannot exclude the evaluation at its end."""


def check_rule(rule: str, stamp: str = "end") -> Rule:
    """Validate the name of a rule and its stamp.

    Args:
        rule: "fair" or "paper".
        stamp: "end" or "start"; "start" is valid with the rule "paper" only.

    Returns:
        The rule.

    Raises:
        UnknownName: If there is no rule of this name.
        BadSetting: If the stamp is unknown or does not fit the rule.
    """
    if stamp not in get_args(Stamp):
        raise BadSetting(f"stamp {stamp!r} is not known; use 'end' or 'start'")
    if rule not in get_args(Rule):
        raise UnknownName("rule", rule, get_args(Rule))
    if rule == "fair" and stamp == "start":
        raise BadSetting("stamp 'start' requires the rule 'paper': the fair rule does not evaluate by rounds")
    return "fair" if rule == "fair" else "paper"


def is_fedavg(method: str) -> bool:
    """Return whether a method is a plain FedAvg variant: no modifiers, and no setting except a deadline of kT or inf.

    Example:
        >>> [is_fedavg(name) for name in ("fedavg+1t", "fedavg+wfa", "fedavg+1t+structured", "prox+1t")]
        [True, True, False, False]
        >>> [is_fedavg(name) for name in ("fedavg[deadline=.5T]", "fedavg+1t[epochs=2]")]
        [True, False]
        >>> is_fedavg("fedavg[epochs=2,deadline=.5T]")
        False
    """
    return re.fullmatch(r"fedavg(\+[^+\-\[]+|\[deadline=(inf|[^,(:]+T)\])", method) is not None


def select_evaluations(curve: RunCurve, budget_s: float, rule: Rule, stamp: Stamp = "end") -> pl.DataFrame:
    """Select the evaluations of a run that a rule uses, in the order of the clock.

    Args:
        curve: The run.
        budget_s: The time budget of its seed. It defines the grid of runs that were evaluated by rounds only.
        rule: The scoring rule.
        stamp: With the rule "paper": whether an evaluation counts at the end or the start of its round.

    Returns:
        A row per evaluation with `at_s`, its `value` (times the sign of the metric), and the `level` that it counts as:
        the value by the paper's rule, the mean of the last three values by the fair rule (null for the first two).
    """
    if rule == "paper":
        return stamp_evaluations(curve.evals, stamp, curve.metric).with_columns(level=pl.col("value"))
    grid = curve.grid if curve.has_grid and curve.grid is not None else _resample(curve, budget_s / GRID)
    # Each window is summed separately and in this order. A running sum would depend on all earlier values, while a run
    # that decides whether to stop has to compute exactly the same number.
    window = [pl.col("value").shift(back) for back in range(HELD - 1, -1, -1)]
    return stamp_evaluations(grid, "end", curve.metric).with_columns(level=reduce(operator.add, window) / HELD)


def final_level(evaluations: pl.DataFrame, budget_s: float) -> float | None:
    """Return the level at the end of the budget; None if there is no evaluation within the budget.

    Args:
        evaluations: As returned by `select_evaluations`.
        budget_s: The time budget.
    """
    levels = evaluations.filter(pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK))["level"]
    return float(levels[-1]) if len(levels) and levels[-1] is not None else None


def time_to_target(evaluations: pl.DataFrame, target: float, column: str = "level") -> float | None:
    """Return the time at which the target is first reached; None if it never is.

    Args:
        evaluations: As returned by `select_evaluations`. The model before training (clock 0) does not count.
        target: The target, times the sign of the metric.
        column: "level" for the rule's definition of reached, "value" for the first single evaluation at the target.
    """
    reached = evaluations.filter((pl.col(column) >= target) & (pl.col("clock_s") > 0))
    return float(reached["at_s"][0]) if reached.height else None


def stamp_budget(budget_s: float, fedavg_1t: RunCurve | None, stamp: Stamp) -> float:
    """Return the budget by the same stamp as the evaluations.

    The budget is the end of FedAvg+1T's last round. In the authors' notebooks it is the start of that round (UCI-HAR,
    seed 0: 10,187 s, when round 50 starts). Without a FedAvg+1T run, its end is used for both stamps.
    """
    if stamp == "end" or fedavg_1t is None:
        return budget_s
    slack_s = CLOCK_SLACK * budget_s
    evaluations = stamp_evaluations(fedavg_1t.evals, stamp, fedavg_1t.metric)
    last = evaluations.filter(pl.col("clock_s").is_between(budget_s - slack_s, budget_s + slack_s))
    return float(last["at_s"][-1]) if last.height else budget_s


def stamp_evaluations(evals: pl.DataFrame, stamp: Stamp, metric: Metric) -> pl.DataFrame:
    """Add the `value` of each evaluation and the time `at_s` at which it counts: the end or the start of its round.

    A round that starts at 0 s keeps its end, because ratios divide by this time. Evaluations without a finite value
    are dropped; the rest is sorted by the clock.
    """
    start_s, clock_s = pl.col("start_s"), pl.col("clock_s")
    at_s = clock_s if stamp == "end" else pl.when(start_s > 0).then(start_s).otherwise(clock_s)
    value = pl.col(metric.name) if metric.name in evals.columns else pl.lit(None, pl.Float64)
    valued = evals.with_columns(at_s=at_s, value=metric.sign * value)
    return valued.filter(pl.col("value").is_not_null() & pl.col("value").is_finite()).sort("clock_s")


def _resample(curve: RunCurve, step_s: float) -> pl.DataFrame:
    """Build a grid for a run that was evaluated by rounds only: each time has the latest evaluation before it."""
    evals = curve.evals.sort("clock_s").with_columns(evaluated_s=pl.col("clock_s"))
    count = int(curve.last_s / step_s * (1 + CLOCK_SLACK))
    times = pl.DataFrame({"clock_s": [number * step_s for number in range(count + 1)]}, schema={"clock_s": pl.Float64})
    # With the slack, a time that rounding moved just before its evaluation still matches it.
    padded = times.with_columns(pl.col("clock_s") * (1 + CLOCK_SLACK))
    matched = padded.join_asof(evals.drop("evaluated_s"), on="clock_s", strategy="backward")
    return matched.with_columns(times["clock_s"]).filter(pl.col("start_s").is_not_null())
