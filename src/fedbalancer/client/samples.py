"""Sample selectors: Algorithm 1 (selection by loss threshold), its variants, and the baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.core.contracts import NOTHING, Private, SampleSelector
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Bounds, Share
from fedbalancer.core.types import FloatArray, IndexArray, Order
from fedbalancer.core.wrapping import Wrapping


def max_trainable_size(batch_s: float, deadline_s: float, epochs: int, batch_size: int, size: int) -> int:
    """Return how many samples can be trained for all epochs before the deadline, at most `size`.

    It counts whole batches, because a short batch takes as long as a full one. As in the paper, neither network nor
    forward pass is subtracted from the deadline; clients compensate by training fewer epochs.

    Args:
        batch_s: Seconds per batch.
        deadline_s: The deadline.
        epochs: Local epochs.
        batch_size: Samples per batch.
        size: Number of samples.

    Example:
        >>> max_trainable_size(batch_s=1.0, deadline_s=100.0, epochs=5, batch_size=10, size=1000)
        200
    """
    whole_batches = int(min(deadline_s / (epochs * batch_s), size))
    return min(whole_batches * batch_size, size)


def group_sizes(wanted: int, over: int, under: int, p: float) -> tuple[int, int]:
    """Return how many samples to draw from OT (a share p) and from UT; a shortage in one is filled from the other."""
    from_under = min(math.floor(wanted * (1 - p) + 1e-9), under)
    from_over = min(wanted - from_under, over)
    return from_over, wanted - from_over


def selected_count(size: int, losses: FloatArray | None, batch_s: float, order: Order) -> int | None:
    """Return how many samples Algorithm 1 selects.

    Args:
        size: Number of samples.
        losses: Loss list, or None.
        batch_s: Seconds per batch.
        order: The order of the round.

    Returns:
        All samples if they fit the deadline; otherwise L = max(S, |OT|), at least 1. None if |OT| is needed but there
            is no
        loss list. With a threshold of 0, all samples are in OT.
    """
    fits = max_trainable_size(batch_s, order.deadline_s, order.epochs, order.batch_size, size)
    if fits >= size:
        return size
    if losses is None:
        return size if order.loss_threshold <= 0 else None
    over = size - int((losses < order.loss_threshold).sum())
    return max(fits, over, 1)


def draw_groups(losses: FloatArray, order: Order, wanted: int, p: float, rng: np.random.Generator) -> IndexArray:
    """Draw `wanted` samples, a share p from OT and the others from UT, uniformly without replacement."""
    under = losses < order.loss_threshold
    over_group, under_group = np.flatnonzero(~under), np.flatnonzero(under)
    from_over, from_under = group_sizes(wanted, len(over_group), len(under_group), p)
    drawn = [rng.choice(over_group, from_over, replace=False), rng.choice(under_group, from_under, replace=False)]
    return np.sort(np.concatenate(drawn))


@dataclass(frozen=True)
class OverThreshold(SampleSelector):
    """Algorithm 1: selects samples by the loss threshold.

    All samples if they fit the deadline; otherwise L = max(S, |OT|) samples, of which L p are at or above the threshold
    (OT) and the others below it (UT), drawn uniformly without replacement. At least one sample is selected.

    Samples with unknown loss belong to OT. While the threshold is 0, all samples do, and no loss list is needed. As in
    the paper, the latencies sampled before training count towards the mean latency (not so in the authors' code at a
    client's first selection).

    Args:
        p: Share of samples from OT.

    Example:
        >>> order = Order(round=1, loss_threshold=1.0, deadline_s=2.0, epochs=1, batch_size=1, seed=0)
        >>> losses = np.array([0.1, 2.0, 3.0, 0.2])
        >>> OverThreshold().select(4, losses, 1.0, order, np.random.default_rng(0)).tolist()
        [1, 2]
    """

    by_threshold: ClassVar[bool] = True

    p: Annotated[float, Bounds(ge=0.5, le=1)] = 1.0

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        if wanted is None:
            return None
        if losses is None or wanted == size:
            return np.arange(size)
        return draw_groups(losses, order, wanted, self.p, rng)


@dataclass(frozen=True)
class OverThresholdBatch(SampleSelector):
    """Sample selection of OortBalancer: Algorithm 1 with L fixed to the batch size (paper, section 3.4).

    Selects B E samples, a share p from OT and the others from UT; smaller clients use all samples. With the method's
    `epoch_batches=1`, every local epoch trains one batch of them. The deadline plays no role, because L is fixed.

    A client needs a loss list at its first selection, whatever the threshold, and a forward pass is charged for it:
    training on a few samples would never produce a list of all.

    Differences from the paper: the paper does not say whether every epoch has its own samples. In the authors' code it
    does, so L is B for each of the E epochs. Their code split the samples into E batches and trained them one sample at
    a time; here an epoch draws B of them at random, as in Oort.

    Args:
        p: Share of samples from OT.
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    p: Annotated[float, Bounds(ge=0.5, le=1)] = 1.0

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = order.batch_size * order.epochs
        if wanted >= size:
            return np.arange(size)
        return None if losses is None else draw_groups(losses, order, wanted, self.p, rng)


@dataclass(frozen=True)
class RandomSamples(SampleSelector):
    """Ablation of Algorithm 1: selects the same number of samples, but uniformly at random.

    The number depends on |OT|, so the loss list and its forward pass are needed as well.
    """

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        return None if wanted is None else np.sort(rng.choice(size, wanted, replace=False))


@dataclass(frozen=True)
class ClassFloor(OverThreshold):
    """Algorithm 1 with a minimum share of every class. This policy is ours.

    Of the samples that Algorithm 1 would select, every class has at least the share `floor` of what a uniform draw
    would give it, rounded up. The others are selected by the threshold. Selection by loss alone drops classes that the
    model has learned, and their losses are never computed again. Labels stay on the client (`of_labels`). Without
    labels, there is one class.

    Args:
        p: Share of samples from OT.
        floor: 0 selects by loss alone, 1 like a uniform draw.
    """

    needs_labels: ClassVar[bool] = True

    floor: Share = 0.5

    def of_labels(self, labels: ArrayLike) -> _OfLabels:
        """Return the selector of a client with these labels.

        Raises:
            BadSetting: If the labels are not one class per sample.
        """
        classes = np.asarray(labels)
        if classes.ndim != 1 or classes.dtype.kind not in "iub":
            raise BadSetting("ClassFloor requires one class label per sample")
        return _OfLabels(self, classes)

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        return self.of_labels(np.zeros(size, dtype=np.int64)).select(size, losses, batch_s, order, rng)


@dataclass(frozen=True, eq=False)
class _OfLabels(Wrapping, SampleSelector):
    """A `ClassFloor` on a client whose labels are known."""

    inner: ClassFloor
    labels: np.ndarray[Any, np.dtype[Any]]

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        if wanted is None:
            return None
        if losses is None or wanted == size:
            return np.arange(size)
        kept = self._draw_minimum(wanted, size, rng)
        rest = np.setdiff1d(np.arange(size), kept)
        chosen = draw_groups(losses[rest], order, max(wanted - len(kept), 0), self.inner.p, rng)
        return np.sort(np.concatenate([kept, rest[chosen]]))

    def _draw_minimum(self, wanted: int, size: int, rng: np.random.Generator) -> IndexArray:
        """Draw the minimum number of samples of every class, uniformly."""
        share = self.inner.floor * wanted / size
        groups = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        return np.concatenate([rng.choice(group, math.ceil(share * len(group)), replace=False) for group in groups])


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


@dataclass(frozen=True)
class EverySample(SampleSelector):
    """Selects all samples. Used by FedAvg and Prox.

    Example:
        >>> EverySample().cap(np.array([3, 9])) is None
        True
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        return np.arange(size)


@dataclass(frozen=True)
class HighestLoss(SampleSelector):
    """The SampleSelection baseline: FedSS's size rule with ranking by loss.

    Clients with more samples than the `percentile` of all client sizes train that many samples, those with the highest
    loss. They need a forward pass when first selected. Other clients train all samples.

    Args:
        percentile: Percentile of client sizes above which a client is cut.

    Example:
        >>> HighestLoss(80).cap(np.array([10, 20, 30, 40, 100]))
        52
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    percentile: float = 80.0

    def cap(self, sizes: IndexArray) -> int | None:
        return int(np.percentile(sizes, self.percentile))

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        if order.sample_cap is None or size <= order.sample_cap:
            return np.arange(size)
        if losses is None:
            return None
        # Samples with unknown losses come first.
        ranking = np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")
        return np.sort(ranking[: order.sample_cap])
