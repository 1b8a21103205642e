"""Statistics of the loss list, with Gaussian noise added on the client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedbalancer.client.summary.noise import DEVIATIONS, MOST_NOISE, with_noise
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.fields import Bounds
from fedbalancer.core.types import STEP_BINS, FloatArray, IndexArray, Order, Release, Summary, TrainResult, step_bin

LOSS_STEP = 2.0**-10
"""Private losses are multiples of this."""
STEP = LOSS_STEP**2
"""Squares of private losses and all private statistics are multiples of this."""
MOST_CLIP = 100.0
"""Largest clip: the sum of squares of 800,000 losses is still an exact multiple of `STEP`."""


@dataclass(frozen=True)
class LossStatistics(Summarizer):
    """Statistics of the loss list, each with noise from N(0, `noise_factor`).

    LLow (the minimum) and LHigh (the 80th percentile) of the whole list, the loss sum of the selected samples, and the
    count and sum of squares of the losses over the threshold.

    Differences from the paper and the authors' code: their code added noise on the server, to LLow and LHigh only; the
    paper says that all statistics are private. We read the list after this round's training; their code read it before.

    Privacy: the paper's losses are unbounded, so no epsilon follows from its noise. A finite epsilon requires noise, a
    `loss_clip`, `utility_samples="all"` and `over_samples="known"`. Let C be the clip. Adding or removing a sample
    moves the minimum and the percentile by at most C each, the loss sum by at most C, the count over the threshold by
    at most 1 and the sum of squares by at most C^2. The L2 sensitivity is therefore at most sqrt(3 C^2 + 1 + C^4).
    Losses are rounded down to multiples of 2^-10 first, so all statistics, and the noise (`with_noise`), are exact
    multiples of 2^-20. With "selected" there is no bound: the server knows the seed of the selection, and one more
    sample changes the whole draw.

    Args:
        noise_factor: Standard deviation of the noise on every statistic.
        utility_samples: Samples of the loss sum: "selected", or "all" as in the authors' code.
        over_samples: Samples of count and squares: "known" (the whole list; unknown losses are assumed to be like the
            others) or "selected" (those trained now, as in Oort).
        high_percentile: Percentile of LHigh.
        loss_clip: Losses are clipped to this value. None: no clipping.

    Example:
        >>> order = Order(round=1, loss_threshold=1.0, deadline_s=60.0, epochs=1, batch_size=10, seed=0)
        >>> losses = np.array([0.5, 1.5, 2.5])
        >>> summary = LossStatistics().summarize(losses, np.arange(3), 0.1, order, np.random.default_rng(0))
        >>> summary.loss_low, summary.loss_sum, summary.over_count
        (0.5, 4.5, 2.0)
    """

    noise_factor: Annotated[float, Bounds(ge=0, le=MOST_NOISE)] = 0.0
    utility_samples: Literal["selected", "all"] = "selected"
    over_samples: Literal["known", "selected"] = "known"
    high_percentile: float = 80.0
    loss_clip: Annotated[float, Bounds(ge=LOSS_STEP, le=MOST_CLIP)] | None = None

    @property
    def sums_all_losses(self) -> bool:
        """Whether the statistics cover the whole list, so that one sample moves them by a bounded amount."""
        return self.utility_samples == "all" and self.over_samples == "known"

    @property
    def of_received_model(self) -> bool:
        """Whether the statistics describe the received model if there is a forward pass in every round."""
        return self.loss_clip is not None

    @property
    def loss_noise(self) -> float:
        """Standard deviation of the noise on every statistic."""
        return self.noise_factor

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the statistics to one sample; infinite without a bound."""
        clip = math.inf if self.loss_clip is None or not self.sums_all_losses else self.loss_clip
        return math.sqrt(3 * clip**2 + 1 + clip**4)

    def release(self, fresh: bool) -> Release:
        name = "gaussian" if self.noise_factor > 0 else "none"
        return Release(name, self.noise_factor / self.sensitivity, "sample" if fresh else "loss")

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        if self.loss_clip is not None:
            losses = np.clip(losses, 0.0, self.loss_clip)
        if self.is_private:
            losses = _round_down(losses, LOSS_STEP)
        known = np.sort(losses[~np.isnan(losses)])
        counted = known if self.utility_samples == "all" else losses[seen]
        considered = np.sort(losses[seen]) if self.over_samples == "selected" else known
        over = considered[np.searchsorted(considered, order.loss_threshold) :]
        # Known losses stand for unknown ones; otherwise utility would grow with every loss that becomes known.
        alone = self.over_samples == "selected" or self.loss_clip is not None
        scale = 1.0 if alone else len(losses) / len(known)
        # Same as np.percentile, without its overhead on short lists.
        high = np.interp(self.high_percentile / 100 * (len(known) - 1), np.arange(len(known)), known)
        exact = np.array([known[0], high, counted.sum(), scale * len(over), scale * (over**2).sum()])
        if self.is_private:
            exact = with_noise(_round_down(exact, STEP), self.noise_factor, rng, STEP)
        elif self.noise_factor > 0:
            exact = exact + rng.normal(0.0, self.noise_factor, size=len(exact))
        low, high, loss_sum, over_count, over_sumsq = exact.tolist()
        return Summary(
            loss_low=low,
            loss_high=high,
            loss_sum=loss_sum,
            loss_count=0.0 if self.is_private else float(len(counted)),
            over_count=over_count,
            over_sumsq=over_sumsq,
            trained=len(seen),
            batch_s=batch_s,
        )

    def statistics_fault(self, summary: Summary, size: int) -> str | None:
        """Return what is wrong with the statistics of a client with `size` samples, or None.

        A value may exceed its bound by ten standard deviations of the noise.
        """
        if self.loss_clip is None:
            return None
        clip, slack = self.loss_clip, DEVIATIONS * self.noise_factor
        most = {
            "loss_low": clip, "loss_high": clip, "loss_sum": size * clip, "over_count": size,
            "over_sumsq": size * clip**2,
        }  # fmt: skip
        for name, bound in most.items():
            value = getattr(summary, name)
            if not -slack <= value <= bound * (1 + 1e-9) + slack:
                return f"{name} {value:g}, which is from {-slack:g} to {bound + slack:g} with {size} samples"
        return None


def _round_down(values: FloatArray, step: float) -> FloatArray:
    return np.asarray(np.floor(values / step) * step)


BIGGEST_LOSS = 1e7
"""Largest loss of a sample, so that sums of squares over clients stay finite."""


@dataclass(frozen=True)
class LossesBySteps(LossStatistics):
    """`LossStatistics`, plus losses by number of local steps.

    For samples first seen after 0, 1 to 2, 3 to 6, 7 to 14, ... local steps: their number, the sum of their losses and
    the sum of the squares. These are 36 numbers more, each with noise of `noise_factor`, from losses that training
    computes anyway. No epsilon follows from them, because a sample's effect on later losses is unbounded.

    Args:
        noise_factor: Standard deviation of the noise on every statistic.
        utility_samples: See `LossStatistics`.
        over_samples: See `LossStatistics`.
        high_percentile: See `LossStatistics`.
        loss_clip: Must be None.
    """

    releases_steps: ClassVar[bool] = True
    releases_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_clip is not None:
            raise ValueError(f"loss_clip = {self.loss_clip} must be None: no epsilon follows from losses by steps")

    def by_steps(self, trained: TrainResult, rng: np.random.Generator) -> tuple[float, ...]:
        """Return counts, sums and sums of squares; zeros if the trainer does not count steps."""
        sums = np.zeros((3, STEP_BINS))
        if trained.steps is not None:
            place = step_bin(trained.steps)
            for row, power in enumerate((0, 1, 2)):
                sums[row] = np.bincount(place, trained.losses**power, STEP_BINS)
        if self.noise_factor > 0:
            sums += rng.normal(0.0, self.noise_factor, size=sums.shape)
        return tuple(sums.ravel().tolist())

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """Return what is wrong with what a client of `size` samples released, or None."""
        if len(released) != 3 * STEP_BINS or not np.isfinite(released).all():
            return f"losses by steps in {len(released)} values, which must be {3 * STEP_BINS} finite numbers"
        sums, slack = np.abs(np.reshape(released, (3, STEP_BINS))), DEVIATIONS * self.noise_factor
        for name, row, most in zip(
            ("count", "sum", "sum of squares"), sums, size * BIGGEST_LOSS ** np.arange(3), strict=True
        ):
            if row.max() > most + slack:
                return f"losses by steps with a {name} of {row.max():g}, which is at most {most + slack:g}"
        return None
