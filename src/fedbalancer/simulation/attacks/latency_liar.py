"""A client that lies about its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedbalancer.core.types import ClientReport, Order


@dataclass(frozen=True)
class LatencyLiar:
    """Says that a batch takes `factor` times as long as it does, to put deadlines off (or, below 1, to cut others)."""

    factor: float = 1e9

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor = {self.factor} must be a finite number over 0")

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        summary = report.summary
        return replace(report, summary=replace(summary, batch_s=summary.batch_s * self.factor))
