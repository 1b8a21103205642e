"""Algorithm 2: the loss threshold of the next round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import RoundResult, ServerState, Setup


def loss_threshold(low: float, high: float, ratio: float) -> float:
    """Return lt = ll + (lh - ll) ltr (Algorithm 2), at least 0.

    Noise may make the statistics negative, but no loss is.

    Args:
        low: Loss low, ll.
        high: Loss high, lh.
        ratio: Loss-threshold ratio, ltr.

    Returns:
        The loss threshold.

    Example:
        >>> loss_threshold(0.5, 2.5, 0.25)
        1.0
    """
    return max(low + (high - low) * ratio, 0.0)


@dataclass(frozen=True)
class LossRange:
    """State of `InterpolatedThreshold`.

    Args:
        low: Minimum of the clients' LLow, ll.
        high: Mean of their LHigh, lh.
        reports: Number of reports in both.
        started: Whether a threshold above zero was ever sent.
    """

    low: float = math.nan
    high: float = math.nan
    reports: int = 0
    started: bool = False


@dataclass(frozen=True)
class InterpolatedThreshold(ThresholdPolicy):
    """Algorithm 2: interpolates between the low and high losses of the last round that had reports.

    As in the authors' code, the threshold is zero until the ratio first rises. In the paper it is ll, which every
    sample reaches as well.

    Args:
        history: `"round"` uses the reports of one round, as in the paper. `"cumulative"` uses all reports, as in the
            authors' code: ll is the minimum over the run and lh the mean, so the threshold lags behind falling losses.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").threshold
        InterpolatedThreshold(history='round')
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
        # A private summary releases nothing in a round with too few reports.
        summaries = [report.summary for report in result.reports if report.summary.loss_count > 0]
        if not summaries:
            return LossRange(past.low, past.high, past.reports, started)
        low, count = min(each.loss_low for each in summaries), len(summaries)
        total = math.fsum(each.loss_high for each in summaries)
        if self.history == "cumulative" and past.reports:
            low, total, count = min(low, past.low), total + past.high * past.reports, count + past.reports
        return LossRange(low, total / count, count, started)
