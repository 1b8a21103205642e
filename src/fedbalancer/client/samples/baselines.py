"""Sample selectors of the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private, SampleSelector
from fedbalancer.core.types import FloatArray, IndexArray, Order


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
