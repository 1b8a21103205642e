"""What the clients of a round released of their losses, in three numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedbalancer.core.types import RoundResult


class Losses(NamedTuple):
    """The mean of the lowest losses that the clients released, the mean loss of their samples, and the mean of the
    highest; None where nobody released any."""

    low: float | None = None
    mean: float | None = None
    high: float | None = None


def released_losses(result: RoundResult) -> Losses:
    """Of the reports that arrived; noise that was added for privacy is in them."""
    told = [report.summary for report in result.reports if report.summary.loss_count > 0]
    if not told:
        return Losses()
    low = math.fsum(each.loss_low for each in told) / len(told)
    high = math.fsum(each.loss_high for each in told) / len(told)
    mean = math.fsum(each.loss_sum for each in told) / math.fsum(each.loss_count for each in told)
    return Losses(*(value if math.isfinite(value) else None for value in (low, mean, high)))
