"""The value of a trial. Metrics follow the fair rule: they are held on the grid of seconds.

Levels are values of the metric times its sign, so that higher is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.rule import CLOCK_SLACK, select_evaluations


@dataclass(frozen=True)
class Reference:
    """The result of FedAvg+1T on one seed.

    Args:
        target: The value of the metric to reach.
        time_s: When FedAvg+1T held it.
    """

    target: float
    time_s: float


Held = list[tuple[float, float]]
"""Grid times within the budget, each with the level held at that time."""


def held_levels(curve: RunCurve, budget_s: float) -> Held:
    """Return the levels that a run holds within the budget.

    Args:
        curve: The run.
        budget_s: The budget in simulated seconds.
    """
    levels = select_evaluations(curve, budget_s, "fair").drop_nulls("level")
    inside = levels.filter(pl.col("at_s") <= budget_s * (1 + CLOCK_SLACK))
    return list(inside.select("at_s", "level").iter_rows())


def time_to_target(held: Held, target: float) -> float | None:
    """Return when a target was held; None if never.

    Interpolates between grid times, because a search compares more finely than a comparison.

    Args:
        held: The levels that a run holds.
        target: The target, as a level.

    >>> time_to_target([(20.0, 0.3), (30.0, 0.6)], 0.45)
    25.0
    """
    start = min(0.0, held[0][1]) if held else 0.0
    for (before_s, below), (at_s, level) in pairwise([(0.0, start), *held]):
        if level >= target and target:
            share = 1.0 if level <= below else max(target - below, 0.0) / (level - below)
            return before_s + share * (at_s - before_s)
    return None


def reference(curve: RunCurve, budget_s: float, share: float) -> Reference | None:
    """Return the target of a seed.

    Args:
        curve: FedAvg+1T's run.
        budget_s: The budget of the seed.
        share: The target as a share of FedAvg+1T's final value.

    Returns:
        The target; None if the run has too few evaluations or a final value of 0.
    """
    held, metric = held_levels(curve, budget_s), curve.metric
    target = metric.share_of(metric.sign * held[-1][1], share) if held else 0.0
    time_s = time_to_target(held, metric.sign * target)
    return None if time_s is None else Reference(target, time_s)


def time_ratio(curve: RunCurve, budget_s: float, against: Reference) -> float:
    """Return a run's time to the target, divided by the reference's.

    A run that misses the target counts as the budget, increased by the share of the target that it missed. So a search
    can distinguish a near miss from a far one.

    Args:
        curve: The run.
        budget_s: The budget in simulated seconds.
        against: The reference.
    """
    held, target = held_levels(curve, budget_s), curve.metric.sign * against.target
    time_s = time_to_target(held, target)
    if time_s is not None:
        return time_s / against.time_s
    missed = (target - max(level for _, level in held)) / abs(target) if held else 1.0
    return budget_s / against.time_s * (1 + missed)


def value_at_budget(curve: RunCurve, budget_s: float) -> float | None:
    """Return the value of the metric held at the end of the budget; None if there are too few evaluations.

    Args:
        curve: The run.
        budget_s: The budget in simulated seconds.
    """
    held = held_levels(curve, budget_s)
    return curve.metric.sign * held[-1][1] if held else None
