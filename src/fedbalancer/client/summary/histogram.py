"""A noisy histogram of the losses: one release from which all statistics are read.

Its client half is `summarize`, its server half `read`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.client.summary import bins as of_bins
from fedbalancer.client.summary.noise import DEVIATIONS, MOST_NOISE, with_noise
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.types import FloatArray, IndexArray, Order, Release, Summary

EPSILON_8_OVER_140 = 7.11
"""The noise multiplier with which 140 releases stay within epsilon 8 at delta 1e-5."""


@dataclass(frozen=True)
class Histogram(Summarizer):
    """Losses clipped to [0, `clip`] and counted in `bins` bins, each plus N(0, `noise_multiplier`) rounded to a whole
    number.

    Sensitivity: every sample is counted in exactly one bin, whose number depends on its own loss only. So a sample
    added or removed changes one count by one, and the L2 sensitivity is 1, whatever the losses; a sample replaced
    changes two counts, and it is sqrt(2). Counts are whole numbers, so rounded noise has the privacy of Gaussian noise
    (`with_noise`).

    The server reads LLow (the 5th percentile: a minimum of noisy values means nothing) and LHigh (the 80th) from the
    sum of a round's histograms, where the noise averages out, and gives both to every report; so Algorithm 2 needs not
    know. The loss sums of Algorithm 3 are scaled to the mean of that sum, too. Count and squares over the threshold are
    each client's own, as far as its noise lets them be seen. All are over the whole list (the paper: the loss sum is
    over the selected samples, which would be a second release).
    """

    of_received_model: ClassVar[bool] = True
    """With a forward pass in every round the losses are those of the model received, not of the training."""
    releases_numbers: ClassVar[bool] = True

    noise_multiplier: float = EPSILON_8_OVER_140
    clip: float = 5.0
    bins: int = 64
    low_quantile: float = 0.05
    high_quantile: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier <= MOST_NOISE:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier} must be a number from 0 to {MOST_NOISE:g}")
        if not (0 < self.clip < math.inf and isinstance(self.bins, int) and 2 <= self.bins <= 4096):
            raise ValueError(f"clip = {self.clip} and bins = {self.bins}: over 0, and from 2 to 4096")
        if not 0 <= self.low_quantile < self.high_quantile <= 1:
            raise ValueError(f"low_quantile = {self.low_quantile} must be under high_quantile = {self.high_quantile}")

    def release(self, fresh: bool) -> Release:
        return Release("histogram", self.noise_multiplier, "sample" if fresh else "loss")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise that one client adds to a count."""
        return self.noise_multiplier

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        counted = of_bins.counts(losses, self._edges)
        noisy = with_noise(counted, self.deviation, rng) if self.deviation > 0 else counted
        return Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, len(seen), batch_s, tuple(noisy.tolist()))

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """Return why this mechanism cannot have produced a histogram of `size` samples, or None. Noise of more than ten
        deviations, in a count or in the sum of the lowest or of the highest bins, counts as impossible."""
        counts = np.asarray(released, dtype=np.float64)
        if len(counts) != self.bins or not np.isfinite(counts).all() or (counts != np.rint(counts)).any():
            return f"a histogram of {len(counts)} values, which must be {self.bins} whole numbers"
        summed = np.arange(1, self.bins + 1)
        for what, bins, sums in (
            ("one bin", np.ones(self.bins), counts),
            ("the lowest bins", summed, np.cumsum(counts)),
            ("the highest bins", summed, np.cumsum(counts[::-1])),
        ):
            slack = DEVIATIONS * self.deviation * np.sqrt(bins)
            if len(off := np.flatnonzero((sums < -slack) | (sums > size + slack))):
                most, found = slack[off[0]], sums[off[0]]
                bounds = f"from {-most:g} to {size + most:g} with {size} samples"
                return f"a histogram with a count of {found:g} in {what}, which is {bounds}"
        return None

    def read(self, summaries: Sequence[Summary], order: Order) -> list[Summary]:
        """The statistics in the histograms of a round."""
        noisy = np.array([each.released for each in summaries])
        pooled, own = of_bins.cleaned(noisy.sum(axis=0)), [of_bins.cleaned(row) for row in noisy]
        middle = of_bins.middles(self._edges)
        sums = np.array([row @ middle for row in own])
        counts = np.array([row.sum() for row in own])
        scale = (pooled @ middle / pooled.sum()) / (sums.sum() / counts.sum())
        return [
            self._statistics(each, pooled, row, float(total * scale), order)
            for each, row, total in zip(summaries, own, sums, strict=True)
        ]

    def _statistics(
        self, summary: Summary, pooled: FloatArray, own: FloatArray, loss_sum: float, order: Order
    ) -> Summary:
        over = own * of_bins.share_over(self._edges, order.loss_threshold)
        return replace(
            summary,
            loss_low=of_bins.quantile(pooled, self._edges, self.low_quantile),
            loss_high=of_bins.quantile(pooled, self._edges, self.high_quantile),
            loss_sum=loss_sum,
            loss_count=float(own.sum()),
            over_count=float(over.sum()),
            over_sumsq=float(over @ of_bins.middles(self._edges) ** 2),
            released=(),
        )

    @property
    def _edges(self) -> FloatArray:
        return of_bins.edges(self.bins, self.clip)
