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
    """Samples that can be trained for all epochs before the deadline, at most `size`.

    Counted in whole batches, since a short batch takes as long as a full one. As in the paper neither network nor
    forward pass is taken off the deadline; clients that train fewer epochs absorb the difference.

    >>> max_trainable_size(batch_s=1.0, deadline_s=100.0, epochs=5, batch_size=10, size=1000)
    200
    """
    whole_batches = int(min(deadline_s / (epochs * batch_s), size))
    return min(whole_batches * batch_size, size)


def group_sizes(wanted: int, over: int, under: int, p: float) -> tuple[int, int]:
    """How many to draw from OT and from UT: a share p from OT, a shortage in one group filled from the other."""
    from_under = min(math.floor(wanted * (1 - p) + 1e-9), under)
    from_over = min(wanted - from_under, over)
    return from_over, wanted - from_over


def selected_count(size: int, losses: FloatArray | None, batch_s: float, order: Order) -> int | None:
    """How many samples Algorithm 1 selects: all that there are if they fit the deadline, otherwise L = max(S, |OT|) and
    never fewer than one. With a threshold of zero all are OT; None if |OT| has to be known and there is no list."""
    fits = max_trainable_size(batch_s, order.deadline_s, order.epochs, order.batch_size, size)
    if fits >= size:
        return size
    if losses is None:
        return size if order.loss_threshold <= 0 else None
    over = size - int((losses < order.loss_threshold).sum())
    return max(fits, over, 1)


def draw_groups(losses: FloatArray, order: Order, wanted: int, p: float, rng: np.random.Generator) -> IndexArray:
    """`wanted` sample numbers, a share p of them from OT and the others from UT, uniformly without replacement."""
    under = losses < order.loss_threshold
    over_group, under_group = np.flatnonzero(~under), np.flatnonzero(under)
    from_over, from_under = group_sizes(wanted, len(over_group), len(under_group), p)
    drawn = [rng.choice(over_group, from_over, replace=False), rng.choice(under_group, from_under, replace=False)]
    return np.sort(np.concatenate(drawn))


@dataclass(frozen=True)
class OverThreshold(SampleSelector):
    """Everything if it fits the deadline; otherwise L = max(S, |OT|) samples, L p of them at or above the threshold
    (OT), the others below (UT), uniformly without replacement, and never fewer than one.

    A sample whose loss is not known yet counts as OT. The ten latencies sampled before training count towards the mean,
    as in the paper (the authors' code had none at a client's first selection). While the threshold is zero all
    samples are OT, so no loss list is needed.
    """

    by_threshold: ClassVar[bool] = True
    """The server may estimate the number of selected samples from the share of losses over the threshold."""

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
    """B E samples, a share p of them at or above the threshold (OT) and the others below (UT), drawn as Algorithm 1
    draws them; smaller clients use all they have. With the method's `epoch_batches=1` every local epoch trains one
    batch of them.

    The paper fixes L to the batch size, and Oort trains a batch in each local epoch; whether every epoch has samples of
    its own it does not say. In the authors' code they do, so L is B for each of the E epochs here too. Departures:
    their code split the B E samples into E batches and trained them one sample at a time; here an epoch takes B of
    them at random, as it takes B of all samples in Oort. What fits the deadline plays no part, as L is fixed.

    A loss list is needed at a client's first selection, whatever the threshold, and a forward pass is charged for it: a
    training sees only a few of the samples, and a list of a few would never become one of all.
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
    """As many samples as `OverThreshold` selects, drawn uniformly instead of by their loss. The number depends on |OT|,
    so the loss list and its forward pass are needed as there: only the choice differs."""

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        return None if wanted is None else np.sort(rng.choice(size, wanted, replace=False))
