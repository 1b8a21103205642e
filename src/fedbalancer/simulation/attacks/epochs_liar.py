"""A client that lies about how much it trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedbalancer.core.types import ClientReport, Order, batches_per_epoch


@dataclass(frozen=True)
class EpochsLiar:
    """Claims `factor` times the epochs and `samples` times the samples that it trained, and that its batches took all
    the time that the server saw: whoever divides that time by the claimed work gets the wrong speed."""

    factor: float = 0.01
    samples: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and 0 < self.samples <= 1):
            raise ValueError(f"factor = {self.factor} must be over 0, and samples = {self.samples} over 0 and up to 1")

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        epochs = min(report.epochs * self.factor, float(order.epochs))
        trained = max(int(report.summary.trained * self.samples), 1)
        batches = max(epochs * batches_per_epoch(trained, order.batch_size, order.epoch_batches), 1.0)
        took_s = report.timings.total_s
        batch_s = took_s / batches if took_s > 0 else report.summary.batch_s / self.factor
        summary = replace(report.summary, trained=trained, batch_s=batch_s)
        return replace(report, epochs=epochs, weight=min(report.weight, float(trained)), summary=summary)
