"""A sample selection policy that skips samples already learned and samples that may be mislabelled."""

from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import SampleSelector
from fedbalancer.core.types import FloatArray, IndexArray, Order


@dataclass(frozen=True)
class WithoutExtremes(SampleSelector):
    """Select samples whose loss is between two quantiles, or all samples while some losses are unknown."""

    low: float = 0.2
    high: float = 0.95

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        if losses is None or np.isnan(losses).any():
            return np.arange(size)
        low, high = np.quantile(losses, (self.low, self.high))
        return np.flatnonzero((losses >= low) & (losses <= high))
