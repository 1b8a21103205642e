"""Algorithm 3 with a utility that a few liars cannot move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from fedbalancer.server.pace.ratio_control import RatioControl
from fedbalancer.types import RoundResult


@dataclass(frozen=True)
class MedianControl(RatioControl):
    """Ours, for `+robust`: the utility of a round is the median of its clients' mean losses over the deadline, in place
    of the mean over all their samples, of which one client can claim any sum."""

    def utility(self, result: RoundResult) -> float | None:
        """Median mean loss per second; None if nobody told."""
        told = [report.summary.loss_mean for report in result.reports if report.summary.loss_count > 0]
        deadline_s = result.plan.order.deadline_s
        seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
        return median(told) / seconds if told and seconds > 0 else None
