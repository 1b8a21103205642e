"""Algorithm 3 with a utility that a few liars cannot move, and steps as long as it is clear which way to go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.pace.ratio_control import clipped


@dataclass(frozen=True, eq=False)
class MedianState:
    """The two ratios; what clients told in the last `2 w` rounds that had reports (their mean losses per second, and
    in the how manyth such round); how many such rounds there were; and the last round's utility."""

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    told: FloatArray = field(default_factory=lambda: np.zeros(0))
    told_in: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    observed: int = 0
    utility: float | None = None


@dataclass(frozen=True)
class MedianControl(PacePolicy):
    """Ours, for `+robust`: as in `RatioControl` the last w rounds are compared with the w before, but by the medians of
    all their clients' mean losses per second, where the paper sums losses of which one client can claim any number.

    And the step is not all or nothing: it is lss (and dss) times the change of utility over `full`, at most 1. In the
    paper's rule the smallest lie can turn a step round where both windows are nearly equal; here it changes the step by
    as little as the lie moves the median. Where utility halves, or more, a step is the paper's.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: int = 20
    lss: float = 0.05
    dss: float = 0.05
    full: float = 0.5

    def __post_init__(self) -> None:
        if not self.full > 0:
            raise ValueError(f"full = {self.full} must be over 0")

    def init(self, setup: Setup) -> MedianState:
        return MedianState()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> MedianState:
        own: MedianState = state.pace
        told = self.per_second(result)
        if not len(told):
            return MedianState(own.loss_threshold_ratio, own.deadline_ratio, own.told, own.told_in, own.observed)
        return self.step(own, told)

    @staticmethod
    def per_second(result: RoundResult) -> FloatArray:
        """Mean loss over the deadline, of every client that told; without a deadline over what the round took."""
        deadline_s = result.plan.order.deadline_s
        seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
        losses = [report.summary.loss_mean for report in result.reports if report.summary.loss_count > 0]
        return np.array(losses) / seconds if seconds > 0 else np.zeros(0)

    def step(self, pace: MedianState, told: FloatArray) -> MedianState:
        """The ratios after one more round."""
        observed = pace.observed + 1
        kept = np.flatnonzero(pace.told_in > observed - 2 * self.w)
        values = np.concatenate([pace.told[kept], told])
        rounds = np.concatenate([pace.told_in[kept], np.full(len(told), observed, dtype=np.int64)])
        ltr, ddlr = pace.loss_threshold_ratio, pace.deadline_ratio
        if observed % self.w == 0 and observed >= 2 * self.w:
            before = rounds <= observed - self.w
            share = self._share(float(np.median(values[before])), float(np.median(values[~before])))
            ltr, ddlr = clipped(ltr + share * self.lss), clipped(ddlr - share * self.dss)
        return MedianState(ltr, ddlr, values, rounds, observed, float(np.median(told)))

    def _share(self, past: float, recent: float) -> float:
        """Of a whole step, from -1 to 1."""
        if past == 0:
            return float(np.sign(-recent))
        return min(max((past - recent) / (self.full * abs(past)), -1.0), 1.0)
