"""Sample selectors of the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private, SampleSelector
from fedbalancer.core.types import FloatArray, IndexArray, Order


@dataclass(frozen=True)
class EverySample(SampleSelector):
    """FedAvg's and Prox's choice: the whole data set."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        return np.arange(size)


@dataclass(frozen=True)
class HighestLoss(SampleSelector):
    """Clients with more samples than the `percentile` of all client sizes train that many, those with the highest
    stored loss; the others train all. Big clients need one forward pass when first selected."""

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
        # A sample whose loss is unknown ranks first: it has to be looked at.
        ranking = np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")
        return np.sort(ranking[: order.sample_cap])
