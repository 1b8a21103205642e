"""Algorithm 2: the loss threshold of the next round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import RoundResult, ServerState, Setup


def loss_threshold(low: float, high: float, ratio: float) -> float:
    """lt = ll + (lh - ll) ltr, and never negative: noise may push a statistic below zero, no loss goes there.

    >>> loss_threshold(0.5, 2.5, 0.25)
    1.0
    """
    return max(low + (high - low) * ratio, 0.0)


@dataclass(frozen=True)
class LossRange:
    """What the clients said: ll = min of LLow, lh = mean of LHigh, over `reports` reports; and whether a threshold
    above zero was ever sent."""

    low: float = math.nan
    high: float = math.nan
    reports: int = 0
    started: bool = False


@dataclass(frozen=True)
class InterpolatedThreshold(ThresholdPolicy):
    """Algorithm 2, from the reports of the last round that had any.

    `history="cumulative"` never forgets, as the authors' code did: ll is then the all-time minimum and lh the mean of
    all reports, and the threshold lags behind the falling losses. As in their code the threshold stays at zero until
    the ratio first rises; the paper's would be ll, which every sample reaches as well.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    history: Literal["round", "cumulative"] = "round"

    def init(self, setup: Setup) -> LossRange:
        return LossRange()

    def threshold(self, setup: Setup, state: ServerState) -> float:
        seen: LossRange = state.threshold
        ratio = state.pace.loss_threshold_ratio
        if seen.reports == 0 or (ratio == 0 and not seen.started):
            return 0.0
        return loss_threshold(seen.low, seen.high, ratio)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LossRange:
        past: LossRange = state.threshold
        started = past.started or result.plan.order.loss_threshold > 0
        # A summary may keep silent in a round with too few reports.
        told = [report.summary for report in result.reports if report.summary.loss_count > 0]
        if not told:
            return LossRange(past.low, past.high, past.reports, started)
        low, count = min(each.loss_low for each in told), len(told)
        total = math.fsum(each.loss_high for each in told)
        if self.history == "cumulative" and past.reports:
            low, total, count = min(low, past.low), total + past.high * past.reports, count + past.reports
        return LossRange(low, total / count, count, started)
