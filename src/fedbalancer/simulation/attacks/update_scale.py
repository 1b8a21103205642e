"""A client whose update is far too long."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedbalancer.core.types import ClientReport, Order


@dataclass(frozen=True)
class UpdateScale:
    """Sends its update times `factor`: what overflows is infinite."""

    factor: float = 1e30

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor = {self.factor} must be a finite number")

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        with np.errstate(over="ignore"):
            return replace(report, update=(report.update * self.factor).astype(np.float32))
