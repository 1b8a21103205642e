"""Algorithm 1: sample selection by loss threshold, and two variants of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private, SampleSelector
from fedbalancer.core.fields import Bounds
from fedbalancer.core.types import FloatArray, IndexArray, Order


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
