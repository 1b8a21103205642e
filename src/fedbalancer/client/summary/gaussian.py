"""The metadata of a round: statistics of the loss list, with Gaussian noise added on the client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbalancer.client.summary.release import Release
from fedbalancer.types import FloatArray, IndexArray, Order, Summary


@dataclass(frozen=True)
class LossStatistics:
    """LLow (minimum) and LHigh (80th percentile) of the whole list, the loss sum of the selected samples, and count and
    sum of squares over OT; each plus N(0, `noise_factor`), so that no exact statistic of losses leaves the client.

    Departures: the authors' code added noise on the server and to LLow and LHigh only; the paper says that all of it is
    private. We read the list after this round's training, whose fresh entries are first-epoch losses (the code read it
    before; only the entries trained now differ). `utility_samples="all"` sums over the whole list as their code did.
    `over_samples="selected"` takes count and squares over the samples trained now only, as Oort does; "known" over the
    whole list, where samples never looked at are taken to be like the others (after a training that ended within its
    first epoch).

    The paper's losses have no bound, so whatever the noise, no epsilon follows from it. With `loss_clip` they are cut
    at that bound first, and it does (`release`); samples never looked at then stand for none but themselves.
    """

    noise_factor: float = 0.0
    utility_samples: Literal["selected", "all"] = "selected"
    over_samples: Literal["known", "selected"] = "known"
    high_percentile: float = 80.0
    loss_clip: float | None = None

    def __post_init__(self) -> None:
        if self.loss_clip is not None and not 0 < self.loss_clip < math.inf:
            raise ValueError(f"loss_clip = {self.loss_clip} must be a finite number over 0")

    @property
    def of_received_model(self) -> bool:
        """Whether a forward pass in every round shall be what is told of: where there is a guarantee to keep."""
        return self.loss_clip is not None

    @property
    def loss_noise(self) -> float:
        """Deviation of the noise on every statistic, which the server has to allow for."""
        return self.noise_factor

    @property
    def sensitivity(self) -> float:
        """How far one sample more or less can move the five numbers, as a distance: LLow, LHigh and the loss sum by
        the clip, the count by 1, the sum of squares by the clip squared."""
        clip = math.inf if self.loss_clip is None else self.loss_clip
        return math.sqrt(3 * clip**2 + 1 + clip**4)

    def release(self, fresh: bool) -> Release:
        name = "gaussian" if self.noise_factor > 0 else "none"
        return Release(name, self.noise_factor / self.sensitivity, "sample" if fresh else "loss")

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        if self.loss_clip is not None:
            losses = np.clip(losses, 0.0, self.loss_clip)
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
        if self.noise_factor > 0:
            exact = exact + rng.normal(0.0, self.noise_factor, size=len(exact))
        low, high, loss_sum, over_count, over_sumsq = exact.tolist()
        return Summary(
            loss_low=low,
            loss_high=high,
            loss_sum=loss_sum,
            loss_count=float(len(counted)),
            over_count=over_count,
            over_sumsq=over_sumsq,
            trained=len(seen),
            batch_s=batch_s,
        )
