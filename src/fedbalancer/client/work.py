"""How much a client does before the deadline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import WorkPolicy


@dataclass(frozen=True)
class AllOrNothing(WorkPolicy):
    """FedAvg: all epochs in time, or the client is dropped."""

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return per_epoch * epochs if elapsed_s(per_epoch * epochs) <= deadline_s else 0


@dataclass(frozen=True)
class WholeEpochs(WorkPolicy):
    """Prox and the paper's FedBalancer: the most whole epochs that fit, at least one."""

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        fitting = (epoch for epoch in range(epochs, 0, -1) if elapsed_s(epoch * per_epoch) <= deadline_s)
        return next(fitting, 0) * per_epoch


@dataclass(frozen=True)
class WholeBatches(WorkPolicy):
    """Ours: the most batches that fit, at least one. A client that stops in the middle of an epoch still reports, and
    its losses, counts and weight cover the samples that it really saw."""

    stops_in_epoch: ClassVar[bool] = True

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return bisect_right(range(1, per_epoch * epochs + 1), deadline_s, key=elapsed_s)
