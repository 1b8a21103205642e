"""All samples, always."""

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
