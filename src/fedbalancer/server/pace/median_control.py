"""Algorithm 3 with a utility that a minority of malicious clients cannot move far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.fields import Bounds, Rounds, Share
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.pace.ratio_control import clip_ratio


@dataclass(frozen=True, eq=False)
class MedianState:
    """State of `MedianControl`.

    Args:
        loss_threshold_ratio: Current ltr.
        deadline_ratio: Current ddlr.
        losses_per_s: Clients' mean losses per second in the last `2 w` rounds that had reports.
        reported_in: The number of that round for each of these values, counting rounds with reports only.
        observed: Number of rounds that had reports.
        utility: Utility of the last round; None if it had no reports.
    """

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    losses_per_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    reported_in: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    observed: int = 0
    utility: float | None = None


@dataclass(frozen=True)
class MedianControl(PacePolicy):
    """Ours, used by `+robust`: `RatioControl` with medians and proportional steps.

    It compares the last w rounds with the w rounds before by the median of all clients' mean losses per second. The
    paper sums losses, of which one client can claim any number.

    A step is lss (or dss) times the relative change of utility over `full`, at most 1. In the paper's rule a small lie
    can reverse a step if both windows are nearly equal; here it changes the step as little as it moves the median.
    Where utility halves or more, a step has the paper's length.

    Args:
        w: Rounds per window.
        lss: Largest step of the loss-threshold ratio.
        dss: Largest step of the deadline ratio.
        full: Relative change of utility that gives a full step.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+robust").pace
        MedianControl(w=20, lss=0.05, dss=0.05, full=0.5)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: Rounds = 20
    lss: Share = 0.05
    dss: Share = 0.05
    full: Annotated[float, Bounds(gt=0)] = 0.5

    def init(self, setup: Setup) -> MedianState:
        return MedianState()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> MedianState:
        own: MedianState = state.pace
        losses_per_s = self.losses_per_second(result)
        if not len(losses_per_s):
            return MedianState(
                own.loss_threshold_ratio, own.deadline_ratio, own.losses_per_s, own.reported_in, own.observed
            )
        return self.step(own, losses_per_s)

    @staticmethod
    def losses_per_second(result: RoundResult) -> FloatArray:
        """Return each reporting client's mean loss per second of the deadline, or of the round without a deadline."""
        deadline_s = result.plan.order.deadline_s
        seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
        losses = [report.summary.loss_mean for report in result.reports if report.summary.loss_count > 0]
        return np.array(losses) / seconds if seconds > 0 else np.zeros(0)

    def step(self, pace: MedianState, losses_per_s: FloatArray) -> MedianState:
        """Return the state after one more round."""
        observed = pace.observed + 1
        kept = np.flatnonzero(pace.reported_in > observed - 2 * self.w)
        values = np.concatenate([pace.losses_per_s[kept], losses_per_s])
        rounds = np.concatenate([pace.reported_in[kept], np.full(len(losses_per_s), observed, dtype=np.int64)])
        ltr, ddlr = pace.loss_threshold_ratio, pace.deadline_ratio
        if observed % self.w == 0 and observed >= 2 * self.w:
            before = rounds <= observed - self.w
            share = self._step_share(float(np.median(values[before])), float(np.median(values[~before])))
            ltr, ddlr = clip_ratio(ltr + share * self.lss), clip_ratio(ddlr - share * self.dss)
        return MedianState(ltr, ddlr, values, rounds, observed, float(np.median(losses_per_s)))

    def _step_share(self, past: float, recent: float) -> float:
        """Return the share of a full step, from -1 to 1."""
        if past == 0:
            return float(np.sign(-recent))
        return min(max((past - recent) / (self.full * abs(past)), -1.0), 1.0)
