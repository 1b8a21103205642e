"""The metadata of a round: statistics of the loss list, with Gaussian noise added on the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

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
    """

    noise_factor: float = 0.0
    utility_samples: Literal["selected", "all"] = "selected"
    over_samples: Literal["known", "selected"] = "known"
    high_percentile: float = 80.0

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        known = np.sort(losses[~np.isnan(losses)])
        counted = known if self.utility_samples == "all" else losses[seen]
        looked_at = np.sort(losses[seen]) if self.over_samples == "selected" else known
        over = looked_at[np.searchsorted(looked_at, order.loss_threshold) :]
        # Of a list that is not whole yet, those known stand for the others: else utility would grow with every look.
        scale = 1.0 if self.over_samples == "selected" else len(losses) / len(known)
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
