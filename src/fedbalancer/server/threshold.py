"""Threshold policies: the loss threshold by which clients select their samples (Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, Private, ThresholdPolicy
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup

__all__ = ["InterpolatedThreshold", "NoThreshold", "RecentThreshold", "TrackedThreshold", "loss_threshold"]


@dataclass(frozen=True)
class NoThreshold(ThresholdPolicy):
    """No selection: the threshold is zero in every round, so every sample reaches it.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").threshold
        NoThreshold()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def threshold(self, setup: Setup, state: ServerState) -> float:
        return 0.0


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


@dataclass(frozen=True, eq=False)
class RecentLosses:
    """State of `RecentThreshold`: the last statistics of each client that reported recently.

    Args:
        rows: Ledger rows of these clients.
        rounds: Round of each client's last report.
        low: Last LLow of each client.
        high: Last LHigh of each client.
        started: Whether a threshold above zero was ever sent.
    """

    rows: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rounds: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    low: FloatArray = field(default_factory=lambda: np.zeros(0))
    high: FloatArray = field(default_factory=lambda: np.zeros(0))
    started: bool = False


@dataclass(frozen=True)
class RecentThreshold(ThresholdPolicy):
    """Ours, used by `+robust`: Algorithm 2 with quantiles over recent clients.

    ll is the `low_quantile` of LLow instead of its minimum, and lh the median of LHigh instead of its mean. Both cover
    the last report of every client that reported within `window` rounds, instead of one round.

    Every client counts once, however often it takes part and whatever it claims. Of n clients, k that all report too
    much move the quantile q by q k ranks, and k that report too little by (1 - q) k. Losses below zero are set to zero
    unless most clients report negative ones (noise), so a low q is safe in both directions. With ten malicious clients
    of 100, the threshold moved by up to 0.05; with the lower quartile by up to 0.11.

    Args:
        window: Number of rounds for which a report counts.
        low_quantile: Quantile of LLow, from 0 to 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+robust").threshold
        RecentThreshold(window=15, low_quantile=0.05)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    window: int = 15
    low_quantile: float = 0.05

    def init(self, setup: Setup) -> RecentLosses:
        return RecentLosses()

    def threshold(self, setup: Setup, state: ServerState) -> float:
        seen: RecentLosses = state.threshold
        ratio = state.pace.loss_threshold_ratio
        if not len(seen.rows) or (ratio == 0 and not seen.started):
            return 0.0
        lows = np.maximum(seen.low, 0.0) if np.median(seen.low) >= 0 else seen.low
        low, high = float(np.quantile(lows, self.low_quantile)), float(np.median(seen.high))
        return loss_threshold(low, max(high, low), ratio)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> RecentLosses:
        past: RecentLosses = state.threshold
        now = result.plan.order.round
        started = past.started or result.plan.order.loss_threshold > 0
        reports = [report for report in result.reports if report.summary.loss_count > 0]
        rows = state.ledger.rows(tuple(report.client for report in reports))
        kept = np.flatnonzero((past.rounds > now - self.window) & ~np.isin(past.rows, rows))
        if not len(kept) and not len(rows):  # keep old values rather than none
            return RecentLosses(past.rows, past.rounds, past.low, past.high, started)
        return RecentLosses(
            rows=np.concatenate([past.rows[kept], rows]),
            rounds=np.concatenate([past.rounds[kept], np.full(len(rows), now, dtype=np.int64)]),
            low=np.concatenate([past.low[kept], [report.summary.loss_low for report in reports]]),
            high=np.concatenate([past.high[kept], [report.summary.loss_high for report in reports]]),
            started=started,
        )


LONGEST_STEP = 1.0
"""Largest change of the exponent in one round, so that noise cannot move the threshold far."""


@dataclass(frozen=True)
class TrackedState:
    """State of `TrackedThreshold`.

    Args:
        threshold: The threshold of the next round.
    """

    threshold: float


@dataclass(frozen=True)
class TrackedThreshold(ThresholdPolicy):
    """Tracks a quantile of the losses, for the private summary `FractionTracker`.

    After every round lt := lt exp(step (f - share)), where f is the mean of the clients' released fractions of losses
    at or above lt. The update is geometric, as in Andrew et al., "Differentially Private Learning with Adaptive
    Clipping" (2021). The threshold stays within [`start` / 1000, `most`].

    Difference from Algorithm 2: the threshold is itself a quantile, so no ratio changes it.

    Args:
        share: Target share of losses at or above the threshold.
        start: Initial threshold.
        step: Step size in the exponent.
        most: Largest threshold.

    Example:
        >>> TrackedThreshold(share=0.2).init(None)
        TrackedState(threshold=1.0)
    """

    needs_fractions: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    share: float = 0.5
    start: float = 1.0
    step: float = 0.05
    most: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.share <= 1 and 0 < self.start <= self.most < math.inf and 0 < self.step <= 10):
            raise ValueError("share must be in (0, 1], step in (0, 10], and 0 < start <= most")

    def init(self, setup: Setup) -> TrackedState:
        return TrackedState(self.start)

    def threshold(self, setup: Setup, state: ServerState) -> float:
        own: TrackedState = state.threshold
        return own.threshold

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> TrackedState:
        own: TrackedState = state.threshold
        fractions = [report.summary.released[0] for report in result.reports if report.summary.released]
        if not fractions:
            return own
        change = self.step * (math.fsum(fractions) / len(fractions) - self.share)
        threshold = own.threshold * math.exp(min(max(change, -LONGEST_STEP), LONGEST_STEP))
        return TrackedState(min(max(threshold, self.start / 1000), self.most))

    def refuses(self, method: Any) -> str | None:
        """Refuse a summary that does not release the fraction."""
        if not method.summary.releases_fraction:
            return "TrackedThreshold needs the fractions that only the summary FractionTracker releases"
        return None
