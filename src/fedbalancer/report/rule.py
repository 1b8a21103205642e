"""The three questions that the paper's scoring rule asks of a method: is it a reference, how accurate was it at the end
of the budget, and when did it reach the target."""

from __future__ import annotations

import re
from typing import Literal

import polars as pl

from fedbalancer.report.folders import RunCurve

Stamp = Literal["end", "start"]
BUDGET_METHOD = "fedavg+1t"
HELD = 3
"""Evaluations in a row whose mean must be at the target."""
CLOCK_SLACK = 1e-9
"""Relative: a budget that went through another sum must not lose the evaluation that ends on it."""


def is_fedavg(method: str) -> bool:
    """Whether a method is a plain FedAvg variant, without a modifier.

    >>> [is_fedavg(name) for name in ("fedavg+1t", "fedavg+wfa", "fedavg+1t+structured", "prox+1t")]
    [True, True, False, False]
    """
    return re.fullmatch(r"fedavg\+[^+-]+", method) is not None


def final_accuracy(evals: pl.DataFrame, budget_s: float, stamp: Stamp = "end") -> float | None:
    """Accuracy of the last evaluation within the budget."""
    inside = stamped(evals, stamp).filter(pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK))
    return float(inside["accuracy"][-1]) if inside.height else None


def time_to_accuracy(evals: pl.DataFrame, target: float, stamp: Stamp = "end") -> float | None:
    """When the target was first reached; None if never. The model before training (clock 0) does not count."""
    reached = stamped(evals, stamp).filter((pl.col("accuracy") >= target) & (pl.col("clock_s") > 0))
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
