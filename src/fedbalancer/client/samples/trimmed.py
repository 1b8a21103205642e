"""Algorithm 1 without samples that may be mislabelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.samples.threshold import OverThreshold
from fedbalancer.core.types import FloatArray, IndexArray, Order

UNIFORM = 0.75
"""Share of the variance that a split into two halves explains for a uniform distribution (normal: 2 / pi, exponential:
0.65). Losses that split better are two groups."""


def split_losses(losses: FloatArray) -> tuple[float, float]:
    """Split losses into two groups by Otsu's rule (1979), exactly.

    Args:
        losses: Losses without NaN.

    Returns:
        The lowest loss of the upper group, and the share of the variance that the two groups explain.

    Example:
        >>> lowest, explained = split_losses(np.array([0.1, 3.0, 0.2, 0.1, 2.8]))
        >>> lowest, round(explained, 3)
        (2.8, 0.997)
    """
    ordered = np.sort(losses)
    apart = ordered - ordered.mean() if len(ordered) else ordered
    if not np.square(apart).sum() > 0:
        return np.inf, 0.0
    below = np.arange(1, len(ordered))
    sums = np.cumsum(apart)[:-1]  # equals minus the sum of those above
    between = sums**2 / (below * (1.0 - below / len(ordered)))
    best = int(np.argmax(between))
    return float(ordered[best + 1]), float(between[best] / np.square(apart).sum())


@dataclass(frozen=True)
class Trimmed(OverThreshold):
    """`OverThreshold` without samples whose labels may be wrong. This policy is ours.

    The losses of mislabelled samples stay high while the others fall (the small-loss trick of Co-teaching, Han et al.
    2018; a mixture of two distributions in Arazo et al. 2019). The client splits its own loss list by Otsu's rule. If
    the two groups explain more of the variance than they would for a uniform distribution, and the upper group is the
    smaller one, its samples are suspects. Each suspect is left out with that share as probability, drawn again in every
    round, so samples that were only hard return. Samples with unknown loss are never suspects.

    Args:
        p: Share of samples from OT.
    """

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        if losses is None:
            return super().select(size, losses, batch_s, order, rng)
        kept = np.flatnonzero(~find_suspects(losses, rng))
        chosen = super().select(len(kept), losses[kept], batch_s, order, rng)
        return None if chosen is None else kept[chosen]


def find_suspects(losses: FloatArray, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which samples are left out this time."""
    known = losses[~np.isnan(losses)]
    lowest, explained = split_losses(known)
    upper = losses >= lowest  # false for NaN
    if explained <= UNIFORM or 2 * int(upper.sum()) >= len(known):
        return np.zeros(len(losses), dtype=bool)
    return upper & (rng.random(len(losses)) < explained)
