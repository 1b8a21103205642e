"""The ablation of Algorithm 1's choice: as many samples, but any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.client.samples.threshold import selected_count
from fedbalancer.core.contracts import SampleSelector
from fedbalancer.core.types import FloatArray, IndexArray, Order


@dataclass(frozen=True)
class RandomSamples(SampleSelector):
    """As many samples as `OverThreshold` selects, drawn uniformly instead of by their loss. The number depends on |OT|,
    so the loss list and its forward pass are needed as there: only the choice differs."""

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        return None if wanted is None else np.sort(rng.choice(size, wanted, replace=False))
