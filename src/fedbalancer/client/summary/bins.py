"""Histograms of losses with noise in them: how they are made and how they are read."""

from __future__ import annotations

import numpy as np

from fedbalancer.core.types import FloatArray


def edges(bins: int, clip: float) -> FloatArray:
    """Bounds of the bins over [0, clip], narrow at the low losses where most samples of a trained model are.

    >>> edges(4, 1.6).round(3).tolist()
    [0.0, 0.1, 0.4, 0.9, 1.6]
    """
    return np.asarray(clip * np.linspace(0.0, 1.0, bins + 1) ** 2)


def counts(losses: FloatArray, bounds: FloatArray) -> FloatArray:
    """How many losses are in each bin; those beyond the bounds count in the last bin, unknown ones (NaN) nowhere."""
    known = np.clip(losses[~np.isnan(losses)], bounds[0], bounds[-1])
    return np.histogram(known, bounds)[0].astype(np.float64)


@np.errstate(over="ignore", invalid="ignore")
def cleaned(noisy: FloatArray) -> FloatArray:
    """The noisy counts without negative ones and with the same total (at least 1): from every bin the same is taken,
    and what would fall below zero is zero ("norm-sub"). It uses the noisy counts only, so it costs no privacy. Any
    finite counts are accepted; where they are too large for their total to be seen, the largest bin has all of it.

    >>> cleaned(np.array([6.0, 3.0, -1.0])).tolist()
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
    """The loss below which a share of the samples is, losses spread evenly inside a bin.

    >>> quantile(np.array([2.0, 2.0]), np.array([0.0, 1.0, 4.0]), 0.75)
    2.5
    """
    below = np.concatenate([[0.0], np.cumsum(held)])
    return float(np.interp(share * below[-1], below, bounds))


def share_over(bounds: FloatArray, threshold: float) -> FloatArray:
    """Of each bin the share of its width at or above a threshold. What is beyond the last bound is in the last bin, so
    a threshold up there has all of that bin over it: someone is always selected.

    >>> share_over(np.array([0.0, 1.0, 4.0]), 2.5).tolist()
    [0.0, 0.5]
    """
    inside = float(bounds[-2]) if threshold >= bounds[-1] else threshold
    return np.clip((bounds[1:] - inside) / np.diff(bounds), 0.0, 1.0)


def middles(bounds: FloatArray) -> FloatArray:
    """The loss that stands for a bin."""
    return np.asarray((bounds[1:] + bounds[:-1]) / 2)
