"""The utility of a round, which ratio control compares."""

from __future__ import annotations

import math

from fedbalancer.core.types import RoundResult


def round_utility(result: RoundResult) -> float | None:
    """Return U_R = LSum / (L ddl) over the clients that completed the round (Algorithm 3, line 2).

    Args:
        result: The round. Without a finite deadline, its duration replaces ddl.

    Returns:
        The utility, or None if no client completed.
    """
    count = math.fsum(report.summary.loss_count for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
    if count <= 0 or seconds <= 0:
        return None
    return math.fsum(report.summary.loss_sum for report in result.reports) / (count * seconds)
