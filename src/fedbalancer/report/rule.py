"""What the scoring rules ask of a run: is it a reference, how accurate was it at the end of the budget, and when did it
reach a target.

The rule `fair` looks at the grid of simulated seconds. A target counts as reached when it is held: when the mean of
the last three evaluations of the grid is at or above it, at the time of the last of them. The rule `paper` looks at
the evaluations by rounds; a target counts as reached when one of them touches it.
"""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import Literal, get_args

import polars as pl

from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.report.stored import RunCurve

Stamp = Literal["end", "start"]
Rule = Literal["fair", "paper"]
BUDGET_METHOD = "fedavg+1t"
HELD = 3
"""Evaluations in a row whose mean must be at the target."""
GRID = 50
"""Evaluations by the clock that a budget has room for, unless `eval_every_s` says otherwise."""
CLOCK_SLACK = 1e-9
"""Relative: a budget that went through another sum must not lose the evaluation that ends on it."""


def checked_rule(rule: str, stamp: str = "end") -> Rule:
    """The rule of this name, if it goes with the stamp."""
    if stamp not in get_args(Stamp):
        raise BadSetting(f"stamp {stamp!r} is not known; use 'end' or 'start'")
    if rule not in get_args(Rule):
        raise UnknownName("rule", rule, get_args(Rule))
    if rule == "fair" and stamp == "start":
        raise BadSetting("stamp 'start' belongs to the rule 'paper': the times of the grid have no round that starts")
    return "fair" if rule == "fair" else "paper"


def is_fedavg(method: str) -> bool:
    """Whether a method is a plain FedAvg variant: no modifier, and nothing in brackets but a deadline of kT or inf.

    >>> [is_fedavg(name) for name in ("fedavg+1t", "fedavg+wfa", "fedavg+1t+structured", "prox+1t")]
    [True, True, False, False]
    >>> [is_fedavg(name) for name in ("fedavg[deadline=.5T]", "fedavg+1t[epochs=2]", "fedavg[epochs=2,deadline=.5T]")]
    [True, False, False]
    """
    return re.fullmatch(r"fedavg(\+[^+\-\[]+|\[deadline=(inf|[^,(:]+T)\])", method) is not None


def points(curve: RunCurve, budget_s: float, rule: Rule, stamp: Stamp = "end") -> pl.DataFrame:
    """The evaluations of a run that a rule looks at, in order: `at_s`, the `accuracy` then, and the `level` that counts
    as reached there: by the fair rule the mean of the last three (null before there are three)."""
    if rule == "paper":
        return stamped(curve.evals, stamp).with_columns(level=pl.col("accuracy"))
    grid = curve.grid if curve.has_grid and curve.grid is not None else _read_off(curve, budget_s / GRID)
    # Summed anew at every time, in this order: a running sum would depend on all that came before, and a run that is
    # asked whether it may stop must find the very same number.
    window = [pl.col("accuracy").shift(back) for back in range(HELD - 1, -1, -1)]
    return stamped(grid, "end").with_columns(level=reduce(operator.add, window) / HELD)


def final_accuracy(found: pl.DataFrame, budget_s: float) -> float | None:
    """The level at the end of the budget; None if there is no evaluation within it."""
    inside = found.filter(pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK))["level"]
    return float(inside[-1]) if len(inside) and inside[-1] is not None else None


def time_to_accuracy(found: pl.DataFrame, target: float, column: str = "level") -> float | None:
    """When the target was first reached or, by the column `accuracy`, touched; None if never. The model before training
    (clock 0) does not count."""
    reached = found.filter((pl.col(column) >= target) & (pl.col("clock_s") > 0))
    return float(reached["at_s"][0]) if reached.height else None


def stamped_budget_s(budget_s: float, fedavg_1t: RunCurve | None, stamp: Stamp) -> float:
    """The budget by the same stamp as the evaluations. It is the end of FedAvg+1T's last round; the authors' is the
    start of that round (UCI-HAR, seed 0: 10,187 s, when its 50th began). Where FedAvg+1T did not take part its end
    stands for both."""
    if stamp == "end" or fedavg_1t is None:
        return budget_s
    slack_s = CLOCK_SLACK * budget_s
    last = stamped(fedavg_1t.evals, stamp).filter(pl.col("clock_s").is_between(budget_s - slack_s, budget_s + slack_s))
    return float(last["at_s"][-1]) if last.height else budget_s


def stamped(evals: pl.DataFrame, stamp: Stamp) -> pl.DataFrame:
    """The evaluations that gave a number, in order, with the time `at_s` that each counts at: the end of its round or
    its start. A round that starts at 0 s keeps its end, since nothing can be divided by a time of 0."""
    start_s, clock_s = pl.col("start_s"), pl.col("clock_s")
    at_s = clock_s if stamp == "end" else pl.when(start_s > 0).then(start_s).otherwise(clock_s)
    finite = pl.col("accuracy").is_not_null() & pl.col("accuracy").is_finite()
    return evals.filter(finite).with_columns(at_s=at_s).sort("clock_s")


def _read_off(curve: RunCurve, step_s: float) -> pl.DataFrame:
    """A grid for a run that was evaluated by rounds only: at every time of it the last evaluation so far."""
    evals = curve.evals.sort("clock_s").with_columns(evaluated_s=pl.col("clock_s"))
    count = int(curve.last_s / step_s * (1 + CLOCK_SLACK))
    times = pl.DataFrame({"clock_s": [number * step_s for number in range(count + 1)]}, schema={"clock_s": pl.Float64})
    # Of a time that a rounding put just before the evaluation it stands for, the evaluation is meant.
    asked = times.with_columns(pl.col("clock_s") * (1 + CLOCK_SLACK))
    found = asked.join_asof(evals.drop("evaluated_s"), on="clock_s", strategy="backward")
    return found.with_columns(times["clock_s"]).filter(pl.col("accuracy").is_not_null())
