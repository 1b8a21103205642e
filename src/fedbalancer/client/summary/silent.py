"""Nothing about losses leaves the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.client.summary.release import NOTHING_TOLD
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.types import FloatArray, IndexArray, Order, Release, Summary


@dataclass(frozen=True)
class Silent(Summarizer):
    """How many samples were trained and how long a batch took; of the losses nothing, not even with noise. Methods
    that steer by losses are refused beside it."""

    releases_losses: ClassVar[bool] = False

    def release(self, fresh: bool) -> Release:
        return Release("silent", NOTHING_TOLD, "client")

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        return Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, trained=len(seen), batch_s=batch_s)
