"""What a client tells of how its losses fall while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.client.summary.gaussian import LossStatistics
from fedbalancer.client.summary.noise import DEVIATIONS
from fedbalancer.core.types import STEP_BINS, TrainResult, step_bin

BIGGEST_LOSS = 1e7
"""Of a sample: sums of squares over clients must stay finite."""


@dataclass(frozen=True)
class LossesBySteps(LossStatistics):
    """`LossStatistics`, and beside them how many samples were met for the first time after 0, 1 to 2, 3 to 6, 7 to 14,
    ... local steps, the sum of their losses then and that of the squares: 36 numbers more, of losses that training
    makes anyway. `noise_factor` is on each of them, too.

    No epsilon follows from it, since what a sample does to the losses of those trained after it has no bound; so a
    `loss_clip`, which is there for one, is refused.
    """

    releases_steps: ClassVar[bool] = True
    releases_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_clip is not None:
            raise ValueError(f"loss_clip = {self.loss_clip}: no epsilon follows from losses by steps")

    def by_steps(self, trained: TrainResult, rng: np.random.Generator) -> tuple[float, ...]:
        """Counts, sums and sums of squares; zeros of a training whose steps nobody counted."""
        told = np.zeros((3, STEP_BINS))
        if trained.steps is not None:
            place = step_bin(trained.steps)
            for row, power in enumerate((0, 1, 2)):
                told[row] = np.bincount(place, trained.losses**power, STEP_BINS)
        if self.noise_factor > 0:
            told += rng.normal(0.0, self.noise_factor, size=told.shape)
        return tuple(told.ravel().tolist())

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """What is wrong with what a client of `size` samples released, if anything is."""
        if len(released) != 3 * STEP_BINS or not np.isfinite(released).all():
            return f"losses by steps in {len(released)} values, which must be {3 * STEP_BINS} finite numbers"
        told, slack = np.abs(np.reshape(released, (3, STEP_BINS))), DEVIATIONS * self.noise_factor
        for name, row, most in zip(
            ("count", "sum", "sum of squares"), told, size * BIGGEST_LOSS ** np.arange(3), strict=True
        ):
            if row.max() > most + slack:
                return f"losses by steps with a {name} of {row.max():g}, which is at most {most + slack:g}"
        return None
