"""A loss threshold that a minority of malicious clients cannot move far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.threshold.interpolated import loss_threshold


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
