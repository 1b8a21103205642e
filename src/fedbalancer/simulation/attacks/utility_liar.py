"""A client that wants to be chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedbalancer.core.types import ClientReport, Order


@dataclass(frozen=True)
class UtilityLiar:
    """Says that its squared losses, by which clients are chosen, are `factor` times what they are."""

    factor: float = 100.0

    def __post_init__(self) -> None:
        if not 0 <= self.factor < math.inf:
            raise ValueError(f"factor = {self.factor} must be a finite number from 0 on")

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        summary = report.summary
        return replace(report, summary=replace(summary, over_sumsq=summary.over_sumsq * self.factor))
