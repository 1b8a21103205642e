"""What a trial is worth."""

from __future__ import annotations

from dataclasses import dataclass

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
    return Reference(target, float(found.filter(pl.col("accuracy") >= target)["clock_s"][0]))


def time_ratio(evals: pl.DataFrame, budget_s: float, against: Reference) -> float:
    """How long a run took to hold the target, in what the reference took. One that never did counts as the budget, and
    for more the further away it stayed: so a search can tell a near miss from a far one."""
    found = held(evals, budget_s)
    arrived = found.filter(pl.col("accuracy") >= against.target)
    if arrived.height:
        return float(arrived["clock_s"][0]) / against.time_s
    best = float(found["accuracy"].max() or 0.0) if found.height else 0.0  # type: ignore[arg-type]
    return budget_s / against.time_s * (1 + (against.target - best) / against.target)


def accuracy_at_budget(evals: pl.DataFrame, budget_s: float) -> float | None:
    """The mean of the last few evaluations within the budget; None if there were too few."""
    found = held(evals, budget_s)
    return float(found["accuracy"][-1]) if found.height else None
