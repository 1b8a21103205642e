"""A client whose labels are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientReport, Order


@dataclass(frozen=True)
class LabelFlip:
    """Trains on labels that were flipped: of n classes, n - 1 - k stands for k (Tolpegin et al., "Data Poisoning
    Attacks Against Federated Learning Systems", ESORICS 2020, flip one class into another; ours is all of them). What
    it then sends is the truth about that: an update as long as others', and losses that are really high."""

    def poisoned(self, samples: Samples, classes: int) -> Samples:
        features, labels = samples
        return features, (classes - 1 - np.asarray(labels)).astype(np.asarray(labels).dtype)

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        return report
