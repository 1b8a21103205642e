"""A client that pushes the model back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedbalancer.core.types import ClientReport, Order


@dataclass(frozen=True)
class UpdateFlip:
    """Sends its update times -`factor`: what it has learnt, unlearnt; with a factor of 100 it outweighs a cohort."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor = {self.factor} must be a finite number over 0")

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        with np.errstate(over="ignore"):
            return replace(report, update=(report.update * -self.factor).astype(np.float32))
