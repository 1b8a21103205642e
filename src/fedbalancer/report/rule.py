"""The three questions that the paper's scoring rule asks of a method: is it a reference, how accurate was it at the end
of the budget, and when did it reach the target."""

from __future__ import annotations

import re
from typing import Literal

import polars as pl

Stamp = Literal["end", "start"]
CLOCK_SLACK = 1e-9
"""Relative: a budget that went through another sum must not lose the evaluation that ends on it."""


def is_fedavg(method: str) -> bool:
    """Whether a method is a plain FedAvg variant, without a modifier.

    >>> [is_fedavg(name) for name in ("fedavg+1t", "fedavg+wfa", "fedavg+1t+structured", "prox+1t")]
    [True, True, False, False]
    """
    return re.fullmatch(r"fedavg\+[^+-]+", method) is not None


def final_accuracy(evals: pl.DataFrame, budget_s: float) -> float | None:
    """Accuracy of the last evaluation within the budget."""
    inside = _clean(evals).filter(pl.col("clock_s") <= budget_s * (1 + CLOCK_SLACK))
    return float(inside["accuracy"][-1]) if inside.height else None


def time_to_accuracy(evals: pl.DataFrame, target: float, stamp: Stamp = "end") -> float | None:
    """When the target was first reached; None if never. The model before training (clock 0) does not count, and a
    round that starts at 0 s is stamped with its end, since nothing can be divided by a time of 0."""
    reached = _clean(evals).filter((pl.col("accuracy") >= target) & (pl.col("clock_s") > 0))
    if not reached.height:
        return None
    start_s = float(reached["start_s"][0]) if stamp == "start" else 0.0
    return start_s if start_s > 0 else float(reached["clock_s"][0])


def _clean(evals: pl.DataFrame) -> pl.DataFrame:
    return evals.filter(pl.col("accuracy").is_not_null() & pl.col("accuracy").is_finite()).sort("clock_s")
