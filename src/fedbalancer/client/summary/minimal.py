"""Summaries without statistics of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedbalancer.client.summary.histogram import EPSILON_8_OVER_140
from fedbalancer.client.summary.noise import DEVIATIONS, MOST_NOISE, NO_INFORMATION, with_noise
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.types import FloatArray, IndexArray, Order, Release, Summary


@dataclass(frozen=True)
class Silent(Summarizer):
    """Releases nothing about losses, only the seconds per batch.

    A report then does not contain the number of trained samples either. Methods that need losses are refused.

    Example:
        >>> Silent().releases_losses
        False
    """

    releases_losses: ClassVar[bool] = False

    def release(self, fresh: bool) -> Release:
        return Release("silent", NO_INFORMATION, "client")

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        return Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, trained=len(seen), batch_s=batch_s)


STEP = 2.0**-10
"""Shares are multiples of this."""


@dataclass(frozen=True)
class FractionTracker(Summarizer):
    """Releases the share of a client's losses at or above the threshold, with noise: one number per round.

    The share is rounded down to multiples of 1/1024; N(0, `noise_multiplier`) is rounded to the same grid. The share
    lies in [0, 1], so all of a client's data can move it by at most 1: the unit of privacy is the client.

    After Andrew et al., "Differentially Private Learning with Adaptive Clipping" (2021), whose clients send one bit and
    whose trusted server adds the noise to the sum; here the client adds it. The server's half is the threshold policy
    `TrackedThreshold`. Nothing else about losses is released, so policies that need losses are refused.

    Args:
        noise_multiplier: Standard deviation of the noise.
    """

    releases_losses: ClassVar[bool] = False
    releases_fraction: ClassVar[bool] = True
    releases_numbers: ClassVar[bool] = True
    of_received_model: ClassVar[bool] = True

    noise_multiplier: float = EPSILON_8_OVER_140

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise_multiplier <= MOST_NOISE:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier} must be a number from 0 to {MOST_NOISE:g}")

    def release(self, fresh: bool) -> Release:
        return Release("fraction-tracker", self.noise_multiplier, "client")

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        known = losses[~np.isnan(losses)]
        share = float((known >= order.loss_threshold).mean()) if len(known) else 1.0
        if self.noise_multiplier > 0:
            on_grid = np.floor(np.array([share]) / STEP) * STEP
            share = float(with_noise(on_grid, self.noise_multiplier, rng, STEP)[0])
        return Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, len(seen), batch_s, (share,))

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """Return what is wrong with what a client released, or None."""
        if len(released) != 1 or not math.isfinite(released[0]):
            return f"{len(released)} numbers, where one finite share is expected"
        slack = DEVIATIONS * self.noise_multiplier
        if not -slack <= released[0] <= 1 + slack:
            return f"a share of {released[0]:g}, which is from {-slack:g} to {1 + slack:g}"
        return None

    def over_share(self, summaries: Sequence[Summary]) -> float:
        """Return the mean share over the threshold in all reports of a round."""
        return math.fsum(each.released[0] for each in summaries) / len(summaries)

    def refuses(self, method: Any) -> str | None:
        """Refuse threshold policies that do not use the share."""
        if not method.threshold.needs_fractions:
            return "FractionTracker releases a share that only the threshold policy TrackedThreshold uses"
        return None
