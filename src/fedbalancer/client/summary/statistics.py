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
"""Private losses are multiples of this,"""
STEP = LOSS_STEP**2
"""and so their squares and all statistics are multiples of this."""
MOST_CLIP = 100.0
"""Up to here the sum of the squares of 800,000 losses is such a multiple, exactly."""


@dataclass(frozen=True)
class LossStatistics(Summarizer):
    """LLow (minimum) and LHigh (80th percentile) of the whole list, the loss sum of the selected samples, and count and
    sum of squares over OT; each plus N(0, `noise_factor`), so that no exact statistic of losses leaves the client.

    Departures: the authors' code added noise on the server and to LLow and LHigh only; the paper says that all of it is
    private. We read the list after this round's training, whose fresh entries are first-epoch losses (the code read it
    before; only the entries trained now differ). `utility_samples="all"` sums over the whole list as their code did.
    `over_samples="selected"` takes count and squares over the samples trained now only, as Oort does; "known" over the
    whole list, where samples never looked at are taken to be like the others (after a training that ended within its
    first epoch).

    The paper's losses have no bound, so whatever the noise, no epsilon follows from it. A finite one (`release`) takes
    noise, a `loss_clip` at which losses are cut first, and `utility_samples="all"` with `over_samples="known"`.

    Sensitivity: let C be the clip. A sample added to a list or removed from it moves the minimum and the percentile by
    at most C, because both stay within [0, C]; the sum of all losses by at most C; the number of losses over the
    threshold by at most 1, and the sum of their squares by at most C^2. Together this is an L2 distance of at most
    sqrt(3 C^2 + 1 + C^4). Losses are rounded down to multiples of 2^-10 first, so all five are exact multiples of
    2^-20, and so is the noise (`with_noise`). Samples never looked at stand for none but themselves.

    With "selected" there is no such bound: the samples selected are a draw by a seed that the server knows, and one
    sample more changes all of the draw, and with it the sum by as much as the losses of all selected samples.
    """

    noise_factor: Annotated[float, Bounds(ge=0, le=MOST_NOISE)] = 0.0
    utility_samples: Literal["selected", "all"] = "selected"
    over_samples: Literal["known", "selected"] = "known"
    high_percentile: float = 80.0
    loss_clip: Annotated[float, Bounds(ge=LOSS_STEP, le=MOST_CLIP)] | None = None

    @property
    def sums_all_losses(self) -> bool:
        """Whether the statistics are over the whole list of losses, so that one sample moves them by little."""
        return self.utility_samples == "all" and self.over_samples == "known"

    @property
    def of_received_model(self) -> bool:
        """Whether the statistics are of the model received, if there is a forward pass in every round."""
        return self.loss_clip is not None

    @property
    def loss_noise(self) -> float:
        """Deviation of the noise on every statistic, which the server has to allow for."""
        return self.noise_factor

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the five numbers to one sample more or less; infinite if it has no bound."""
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
            losses = _rounded_down(losses, LOSS_STEP)
        known = np.sort(losses[~np.isnan(losses)])
        counted = known if self.utility_samples == "all" else losses[seen]
        looked_at = np.sort(losses[seen]) if self.over_samples == "selected" else known
        over = looked_at[np.searchsorted(looked_at, order.loss_threshold) :]
        # Of a list that is not whole yet, those known stand for the others: else utility would grow with every look.
        alone = self.over_samples == "selected" or self.loss_clip is not None
        scale = 1.0 if alone else len(losses) / len(known)
        # np.percentile gives the same, but its overhead dominates on lists as short as a phone's.
        high = np.interp(self.high_percentile / 100 * (len(known) - 1), np.arange(len(known)), known)
        exact = np.array([known[0], high, counted.sum(), scale * len(over), scale * (over**2).sum()])
        if self.is_private:
            exact = with_noise(_rounded_down(exact, STEP), self.noise_factor, rng, STEP)
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

    def statistics_fault(self, told: Summary, size: int) -> str | None:
        """Return what is wrong with the statistics of a client of `size` samples, or None. A loss may exceed the clip
        by ten standard deviations of the noise."""
        if self.loss_clip is None:
            return None
        clip, slack = self.loss_clip, DEVIATIONS * self.noise_factor
        most = {
            "loss_low": clip, "loss_high": clip, "loss_sum": size * clip, "over_count": size,
            "over_sumsq": size * clip**2,
        }  # fmt: skip
        for name, bound in most.items():
            if not -slack <= getattr(told, name) <= bound * (1 + 1e-9) + slack:
                return (
                    f"{name} {getattr(told, name):g}, which is from {-slack:g} to {bound + slack:g} with {size} samples"
                )
        return None


def _rounded_down(values: FloatArray, step: float) -> FloatArray:
    return np.asarray(np.floor(values / step) * step)


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
