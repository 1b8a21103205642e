"""What a trial is worth. Accuracies are those of the fair rule: held on the grid of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.rule import CLOCK_SLACK, select_evaluations


@dataclass(frozen=True)
class Reference:
    """What FedAvg+1T did on one seed: the accuracy to reach, and when it held that itself."""

    target: float
    time_s: float


Held = list[tuple[float, float]]
"""Times of the grid within the budget and the accuracy that is held at each."""


def held(curve: RunCurve, budget_s: float) -> Held:
    """What a run holds, and when."""
    found = select_evaluations(curve, budget_s, "fair").drop_nulls("level")
    inside = found.filter(pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK))
    return list(inside.select("at_s", "level").iter_rows())


def reached_s(found: Held, target: float) -> float | None:
    """When the target was held, None if never; read off between two times of the grid, since a search has to tell apart
    what a comparison need not.

    >>> reached_s([(20.0, 0.3), (30.0, 0.6)], 0.45)
    25.0
    """
    for (before_s, below), (at_s, level) in pairwise([(0.0, 0.0), *found]):
        if level >= target > 0:
            share = 1.0 if level <= below else max(target - below, 0.0) / (level - below)
            return before_s + share * (at_s - before_s)
    return None


def reference(curve: RunCurve, budget_s: float, share: float) -> Reference | None:
    """The target of a seed, from FedAvg+1T's run; None if that was not evaluated often enough, or learnt nothing."""
    found = held(curve, budget_s)
    target = share * found[-1][1] if found else 0.0
    time_s = reached_s(found, target)
    return None if time_s is None else Reference(target, time_s)


def time_ratio(curve: RunCurve, budget_s: float, against: Reference) -> float:
    """How long a run took to hold the target, in what the reference took. One that never did counts as the budget, and
    for more the further away it stayed: so a search can tell a near miss from a far one."""
    found = held(curve, budget_s)
    time_s = reached_s(found, against.target)
    if time_s is not None:
        return time_s / against.time_s
    best = max((level for _, level in found), default=0.0)
    return budget_s / against.time_s * (1 + (against.target - best) / against.target)


def accuracy_at_budget(curve: RunCurve, budget_s: float) -> float | None:
    """The accuracy that is held at the end of the budget; None if there were too few evaluations."""
    found = held(curve, budget_s)
    return found[-1][1] if found else None
