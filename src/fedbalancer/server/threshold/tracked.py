"""A loss threshold that tracks a quantile of the losses from one noisy number per client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import RoundResult, ServerState, Setup

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
            raise ValueError("share from 0 to 1, step from 0 to 10 and start over 0, at most `most`, are needed")

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
