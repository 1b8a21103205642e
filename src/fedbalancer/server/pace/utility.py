"""The benefit of a round's configuration, which the ratio control compares."""

from __future__ import annotations

import math

from fedbalancer.core.types import RoundResult


def round_utility(result: RoundResult) -> float | None:
    """U_R = LSum / (L ddl) over the clients that completed (Algorithm 3, line 2); None if nobody did.

    A method without a deadline is measured by the seconds that the round took.
    """
    count = math.fsum(report.summary.loss_count for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
    if count <= 0 or seconds <= 0:
        return None
    return math.fsum(report.summary.loss_sum for report in result.reports) / (count * seconds)
