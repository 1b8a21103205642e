"""Noisy histograms of losses, from which the server reads all statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.client.summary.noise import DEVIATIONS, MOST_NOISE, with_noise
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.types import FloatArray, IndexArray, Order, Release, Summary


def bin_edges(bins: int, clip: float) -> FloatArray:
    """Return the bounds of the bins over [0, clip], narrow at low losses.

    Args:
        bins: Number of bins.
        clip: Largest loss.

    Example:
        >>> bin_edges(4, 1.6).round(3).tolist()
        [0.0, 0.1, 0.4, 0.9, 1.6]
    """
    return np.asarray(clip * np.linspace(0.0, 1.0, bins + 1) ** 2)


def count_losses(losses: FloatArray, bounds: FloatArray) -> FloatArray:
    """Return the number of losses per bin. Losses beyond the bounds count in the last bin, NaN nowhere."""
    known = np.clip(losses[~np.isnan(losses)], bounds[0], bounds[-1])
    return np.histogram(known, bounds)[0].astype(np.float64)


@np.errstate(over="ignore", invalid="ignore")
def clean_counts(noisy: FloatArray) -> FloatArray:
    """Return noisy counts without negative values and with the same total, at least 1 ("norm-sub").

    The same amount is subtracted from every bin, and negative results become 0. It uses noisy counts only, so it costs
    no privacy. If counts are too large for their total to be visible, the largest bin gets all of it.

    Args:
        noisy: Any finite counts.

    Example:
        >>> clean_counts(np.array([6.0, 3.0, -1.0])).tolist()
        [5.5, 2.5, 0.0]
    """
    total = max(float(noisy.sum()), 1.0)
    descending = np.sort(noisy)[::-1]
    surplus = (np.cumsum(descending) - total) / np.arange(1, len(noisy) + 1)
    kept = np.flatnonzero(descending > surplus)
    held = np.maximum(noisy - surplus[kept[-1]], 0.0) if len(kept) else np.zeros(len(noisy))
    if 0 < held.sum() < np.inf:
        return np.asarray(held)
    return np.where(np.arange(len(noisy)) == noisy.argmax(), 1.0, 0.0)


def quantile(held: FloatArray, bounds: FloatArray, share: float) -> float:
    """Return the loss below which a share of the samples lies, with losses spread evenly within a bin.

    Args:
        held: Counts per bin.
        bounds: Bounds of the bins.
        share: The share.

    Example:
        >>> quantile(np.array([2.0, 2.0]), np.array([0.0, 1.0, 4.0]), 0.75)
        2.5
    """
    below = np.concatenate([[0.0], np.cumsum(held)])
    return float(np.interp(share * below[-1], below, bounds))


def shares_over(bounds: FloatArray, threshold: float) -> FloatArray:
    """Return the share of each bin's width at or above a threshold.

    A threshold beyond the last bound has all of the last bin over it, because that bin holds all higher losses.

    Args:
        bounds: Bounds of the bins.
        threshold: The threshold.

    Example:
        >>> shares_over(np.array([0.0, 1.0, 4.0]), 2.5).tolist()
        [0.0, 0.5]
    """
    inside = float(bounds[-2]) if threshold >= bounds[-1] else threshold
    return np.clip((bounds[1:] - inside) / np.diff(bounds), 0.0, 1.0)


def bin_middles(bounds: FloatArray) -> FloatArray:
    """Return the middle of each bin."""
    return np.asarray((bounds[1:] + bounds[:-1]) / 2)


EPSILON_8_OVER_140 = 7.11
"""Noise multiplier with which 140 releases stay within epsilon 8 at delta 1e-5."""


@dataclass(frozen=True)
class Histogram(Summarizer):
    """A noisy histogram of losses: clipped to [0, `clip`], counted in `bins` bins, with rounded noise on each count.

    Sensitivity: every sample counts in exactly one bin, which depends only on its own loss. Adding or removing a sample
    changes one count by one, so the L2 sensitivity is 1, whatever the losses. Replacing a sample changes two counts, so
    it is sqrt(2). Counts are integers, so rounded noise is as private as Gaussian noise (`with_noise`).

    The server computes LLow (the 5th percentile, because a minimum of noisy values means nothing) and LHigh (the 80th)
    from the sum of a round's histograms, where the noise averages out, and assigns both to every report. The loss sums
    of Algorithm 3 are scaled to the mean of that sum. Count and squares over the threshold are each client's own. All
    cover the whole list; in the paper, the loss sum covers the selected samples, which would be a second release.

    Args:
        noise_multiplier: Standard deviation of the noise on each count.
        clip: Losses are clipped to this value.
        bins: Number of bins.
        low_quantile: Quantile of LLow.
        high_quantile: Quantile of LHigh.

    Example:
        >>> Histogram(noise_multiplier=7.11).release(fresh=True)
        Release(mechanism='histogram', noise_multiplier=7.11, unit='sample')
    """

    of_received_model: ClassVar[bool] = True
    releases_numbers: ClassVar[bool] = True

    noise_multiplier: float = EPSILON_8_OVER_140
    clip: float = 5.0
    bins: int = 64
    low_quantile: float = 0.05
    high_quantile: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise_multiplier <= MOST_NOISE:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier} must be a number from 0 to {MOST_NOISE:g}")
        if not (0 < self.clip < math.inf and isinstance(self.bins, int) and 2 <= self.bins <= 4096):
            raise ValueError(f"clip = {self.clip} must be over 0, and bins = {self.bins} from 2 to 4096")
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
        counted = count_losses(losses, self._edges)
        noisy = with_noise(counted, self.deviation, rng) if self.deviation > 0 else counted
        return Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, len(seen), batch_s, tuple(noisy.tolist()))

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """Return why this mechanism cannot have produced a histogram of `size` samples, or None.

        Noise of more than ten standard deviations, in a count or in the sum of the lowest or highest bins, counts as
        impossible.
        """
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
                most, count = slack[off[0]], sums[off[0]]
                bounds = f"from {-most:g} to {size + most:g} with {size} samples"
                return f"a histogram with a count of {count:g} in {what}, which is {bounds}"
        return None

    def read(self, summaries: Sequence[Summary], order: Order) -> list[Summary]:
        """Return the statistics of the histograms of a round."""
        noisy = np.array([each.released for each in summaries])
        pooled, own = clean_counts(noisy.sum(axis=0)), [clean_counts(row) for row in noisy]
        middle = bin_middles(self._edges)
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
        over = own * shares_over(self._edges, order.loss_threshold)
        return replace(
            summary,
            loss_low=quantile(pooled, self._edges, self.low_quantile),
            loss_high=quantile(pooled, self._edges, self.high_quantile),
            loss_sum=loss_sum,
            loss_count=float(own.sum()),
            over_count=float(over.sum()),
            over_sumsq=float(over @ bin_middles(self._edges) ** 2),
            released=(),
        )

    @property
    def _edges(self) -> FloatArray:
        return bin_edges(self.bins, self.clip)


LEAST_DEVIATION = 0.5
"""Smallest standard deviation of one client's share of the noise."""


@dataclass(frozen=True)
class SecAggHistogram(Histogram):
    """A `Histogram` whose noise is shared between clients, for secure aggregation.

    Each client adds N(0, `noise_multiplier` / sqrt(`least`)), rounded to integers. The sum of at least `least` clients
    has all of the noise; a sum of fewer clients is not revealed. Every report gets the cohort's mean statistics, so
    selection of clients by utility becomes selection by speed.

    The guarantee holds only if the server sees nothing but the sum. The simulator ensures this without cryptography;
    on Flower, `Strategy(secure_aggregation=True)` does. Clients that collude with the server or omit their noise weaken
    it for the others. A client's own deviation must be at least `LEAST_DEVIATION`: from there on, a sum of rounded
    shares hides at least as much as the rounded sum (see the tests).

    Args:
        noise_multiplier: Standard deviation of the noise on each summed count.
        clip: Losses are clipped to this value.
        bins: Number of bins.
        low_quantile: Quantile of LLow.
        high_quantile: Quantile of LHigh.
        least: Fewest clients whose sum is revealed.
    """

    needs_secure_aggregation: ClassVar[bool] = True

    least: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.least, int) or self.least < 2:
            raise ValueError(f"least = {self.least} must be at least 2 clients: one client has no sum to hide in")
        if 0 < self.deviation < LEAST_DEVIATION:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier} shared by least = {self.least} clients is "
                f"{self.deviation:.3g} for each, which must be at least {LEAST_DEVIATION}: choose a smaller least"
            )

    def release(self, fresh: bool) -> Release:
        return replace(super().release(fresh), mechanism="secagg-histogram")

    @property
    def deviation(self) -> float:
        return self.noise_multiplier / math.sqrt(self.least)

    def read(self, summaries: Sequence[Summary], order: Order) -> list[Summary]:
        if len(summaries) < self.least:
            return [replace(each, released=()) for each in summaries]
        pooled = clean_counts(np.sum([each.released for each in summaries], axis=0))
        mean = pooled / len(summaries)
        loss_sum = float(mean @ bin_middles(self._edges))
        return [self._statistics(each, pooled, mean, loss_sum, order) for each in summaries]

    def refuses(self, method: Any) -> str | None:
        """Refuse aggregators that need the losses of single clients."""
        if method.aggregate.needs_losses:
            return f"{type(method.aggregate).__name__} weights clients by their losses, but only their sum is known"
        return None
