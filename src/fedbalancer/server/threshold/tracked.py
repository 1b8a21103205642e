"""A loss threshold that follows a quantile of the losses by one noisy number per client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbalancer.core.contracts import LOSSES, Private, ThresholdPolicy
from fedbalancer.core.types import RoundResult, ServerState, Setup

LONGEST_STEP = 1.0
"""In the exponent, in one round: noise must not throw the threshold away."""


@dataclass(frozen=True)
class Tracked:
    """The threshold of the next round."""

    threshold: float


@dataclass(frozen=True)
class TrackedThreshold(ThresholdPolicy):
    """After every round lt := lt exp(step (f - share)), where f is the mean share of losses at or above lt that the
    clients told (the summary `FractionTracker`), until `share` of them is: geometric, as in Andrew et al. (2021).

    It begins at `start` and stays in [`start` / 1000, `most`]. The paper's threshold lies at a ratio between the
    lowest and the 80th percentile of the losses; this one is itself a quantile, and no ratio moves it.
    """

    needs_fractions: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    share: float = 0.5
    start: float = 1.0
    step: float = 0.05
    most: float = 5.0

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 < self.start <= self.most < math.inf and 0 < self.step <= 10):
            raise ValueError("share from 0 to 1, step from 0 to 10 and start over 0, at most `most`, are needed")

    def init(self, setup: Setup) -> Tracked:
        return Tracked(self.start)

    def threshold(self, setup: Setup, state: ServerState) -> float:
        own: Tracked = state.threshold
        return own.threshold

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Tracked:
        own: Tracked = state.threshold
        told = [report.summary.released[0] for report in result.reports if report.summary.released]
        if not told:
            return own
        wanted = self.step * (math.fsum(told) / len(told) - self.share)
        moved = own.threshold * math.exp(min(max(wanted, -LONGEST_STEP), LONGEST_STEP))
        return Tracked(min(max(moved, self.start / 1000), self.most))

    def refuses(self, method: Any) -> str | None:
        """Whether nobody tells it what it listens for."""
        if not method.summary.releases_fraction:
            return "TrackedThreshold follows the shares that only the summary FractionTracker releases"
        return None
