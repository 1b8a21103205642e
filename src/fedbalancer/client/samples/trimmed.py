"""Algorithm 1 without the samples whose labels seem wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.samples.threshold import OverThreshold
from fedbalancer.core.types import FloatArray, IndexArray, Order

UNIFORM = 0.75
"""Of the variance of a uniform distribution, the split into two halves explains so much: of a normal one 2 / pi, of an
exponential one .65. Losses that split better than that are two groups rather than one."""


def split(losses: FloatArray) -> tuple[float, float]:
    """The lowest loss of the upper of two groups, and which share of the losses' variance the two explain: the split
    that explains most (Otsu 1979), found exactly, between the losses in order.

    >>> lowest, explained = split(np.array([0.1, 3.0, 0.2, 0.1, 2.8]))
    >>> lowest, round(explained, 3)
    (2.8, 0.997)
    """
    ordered = np.sort(losses)
    apart = ordered - ordered.mean() if len(ordered) else ordered
    if not np.square(apart).sum() > 0:
        return np.inf, 0.0
    below = np.arange(1, len(ordered))
    sums = np.cumsum(apart)[:-1]  # minus those above, since all sum up to nothing
    between = sums**2 / (below * (1.0 - below / len(ordered)))
    best = int(np.argmax(between))
    return float(ordered[best + 1]), float(between[best] / np.square(apart).sum())


@dataclass(frozen=True)
class Trimmed(OverThreshold):
    """Ours, for wrong labels: `OverThreshold` on what is left when samples of suspect loss are left out.

    A model learns what most labels say, so the losses of the wrong ones stay high while the others fall (the small-loss
    trick of Co-teaching, Han et al. 2018; a mixture of two over the losses in Arazo et al. 2019). Here the client's own
    list is split in two by Otsu's rule. Where the two groups explain more of its variance than they would of a uniform
    distribution, and the upper one is the smaller, its samples are suspect. A suspect is left out with the probability
    of that share, anew in every round: the less clear the split, the more of them are trained and looked at again, so
    that one that was only hard comes back. Nothing has to be chosen, and a sample never looked at is no suspect.
    """

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        if losses is None:
            return super().select(size, losses, batch_s, order, rng)
        kept = np.flatnonzero(~suspects(losses, rng))
        chosen = super().select(len(kept), losses[kept], batch_s, order, rng)
        return None if chosen is None else kept[chosen]


def suspects(losses: FloatArray, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which samples are left out this time."""
    known = losses[~np.isnan(losses)]
    lowest, explained = split(known)
    upper = losses >= lowest  # never where it is not known
    if explained <= UNIFORM or 2 * int(upper.sum()) >= len(known):
        return np.zeros(len(losses), dtype=bool)
    return upper & (rng.random(len(losses)) < explained)
