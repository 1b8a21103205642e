"""A loss threshold that a few liars cannot move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.threshold.interpolated import loss_threshold


@dataclass(frozen=True, eq=False)
class RecentLosses:
    """What clients (rows of the ledger) said in which of the last rounds, each once: its last LLow and LHigh; and
    whether a threshold above zero was ever sent."""

    rows: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rounds: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    low: FloatArray = field(default_factory=lambda: np.zeros(0))
    high: FloatArray = field(default_factory=lambda: np.zeros(0))
    started: bool = False


@dataclass(frozen=True)
class RecentThreshold(ThresholdPolicy):
    """Ours, for `+robust`: Algorithm 2 with ll = the `low_quantile` of LLow in place of its minimum, lh = the median of
    LHigh in place of its mean, over the last reports of all clients heard in `window` rounds in place of one round's.

    One client is one voice, however often it takes part, and however large its numbers are. Of n voices k liars that
    all say more move the quantile q by q k ranks among the honest ones, and such that all say less by (1 - q) k. There
    is no room below zero, where most clients have no loss there, so that a low q for LLow is safe from either: with the
    lower quartile ten liars of 100 moved the threshold by up to .11, with this one by .05. In one round's ten
    reports a single liar would do that.
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
        told = np.maximum(seen.low, 0.0) if np.median(seen.low) >= 0 else seen.low
        low, high = float(np.quantile(told, self.low_quantile)), float(np.median(seen.high))
        return loss_threshold(low, max(high, low), ratio)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> RecentLosses:
        past: RecentLosses = state.threshold
        now = result.plan.order.round
        started = past.started or result.plan.order.loss_threshold > 0
        told = [report for report in result.reports if report.summary.loss_count > 0]
        rows = state.ledger.rows(tuple(report.client for report in told))
        kept = np.flatnonzero((past.rounds > now - self.window) & ~np.isin(past.rows, rows))
        if not len(kept) and not len(rows):  # better old than nothing
            return RecentLosses(past.rows, past.rounds, past.low, past.high, started)
        return RecentLosses(
            rows=np.concatenate([past.rows[kept], rows]),
            rounds=np.concatenate([past.rounds[kept], np.full(len(rows), now, dtype=np.int64)]),
            low=np.concatenate([past.low[kept], [report.summary.loss_low for report in told]]),
            high=np.concatenate([past.high[kept], [report.summary.loss_high for report in told]]),
            started=started,
        )
