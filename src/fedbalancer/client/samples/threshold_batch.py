"""OortBalancer's samples: Algorithm 1 with L fixed to the batch size (paper section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.client.samples.threshold import draw_groups
from fedbalancer.core.contracts import NOTHING, Private, SampleSelector
from fedbalancer.core.types import FloatArray, IndexArray, Order


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

    p: float = 1.0

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = order.batch_size * order.epochs
        if wanted >= size:
            return np.arange(size)
        return None if losses is None else draw_groups(losses, order, wanted, self.p, rng)
