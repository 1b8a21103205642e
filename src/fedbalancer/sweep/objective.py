"""What a trial is worth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from fedbalancer.report.rule import CLOCK_SLACK, HELD
from fedbalancer.store.rows import SECONDS


@dataclass(frozen=True)
class Reference:
    """What FedAvg+1T did on one seed: the accuracy to reach, and when it held that itself."""

    target: float
    time_s: float


def held(evals: pl.DataFrame, budget_s: float) -> pl.DataFrame:
    """Accuracies on the grid of seconds within the budget, each the mean of the last few (`HELD`), with their times."""
    on_grid = evals.filter(pl.col("schedule") == SECONDS, pl.col("clock_s") <= budget_s * (1 + CLOCK_SLACK))
    return on_grid.sort("clock_s").select("clock_s", accuracy=pl.col("accuracy").rolling_mean(HELD)).drop_nulls()


def reference(evals: pl.DataFrame, budget_s: float, share: float) -> Reference | None:
    """The target of a seed, from FedAvg+1T's run; None if that was not evaluated often enough."""
    found = held(evals, budget_s)
    if not found.height:
        return None
    target = share * float(found["accuracy"][-1])
    time_s = reached_s(found, target)
    return None if time_s is None else Reference(target, time_s)


def reached_s(held_: pl.DataFrame, target: float) -> float | None:
    """When the target was held, None if never; read off between two times of the grid, since a search has to tell apart
    what a comparison need not."""
    points = [(0.0, 0.0), *held_.select("clock_s", "accuracy").iter_rows()]
    for (before_s, below), (clock_s, accuracy) in pairwise(points):
        if accuracy >= target > 0:
            share = 1.0 if accuracy <= below else max(target - below, 0.0) / (accuracy - below)
            return float(before_s + share * (clock_s - before_s))
    return None


def time_ratio(evals: pl.DataFrame, budget_s: float, against: Reference) -> float:
    """How long a run took to hold the target, in what the reference took. One that never did counts as the budget, and
    for more the further away it stayed: so a search can tell a near miss from a far one."""
    found = held(evals, budget_s)
    time_s = reached_s(found, against.target)
    if time_s is not None:
        return time_s / against.time_s
    best = float(found["accuracy"].max() or 0.0) if found.height else 0.0  # type: ignore[arg-type]
    return budget_s / against.time_s * (1 + (against.target - best) / against.target)


def accuracy_at_budget(evals: pl.DataFrame, budget_s: float) -> float | None:
    """The mean of the last few evaluations within the budget; None if there were too few."""
    found = held(evals, budget_s)
    return float(found["accuracy"][-1]) if found.height else None
