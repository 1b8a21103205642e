"""The histogram of a whole cohort, of which the server would learn nothing but the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.client.summary import bins as of_bins
from fedbalancer.client.summary.histogram import Histogram
from fedbalancer.core.types import Order, Release, Summary

LEAST_DEVIATION = 0.5
"""The smallest deviation of one client's share of the noise."""


@dataclass(frozen=True)
class SecAggHistogram(Histogram):
    """A `Histogram` whose noise is shared: each client adds N(0, `noise_multiplier` / sqrt(`least`)), rounded to whole
    numbers, so that the sum of at least `least` clients has all of it, and a sum of fewer is not revealed (nobody tells
    anything then). A client's own deviation must be `LEAST_DEVIATION` or more: a sum of rounded shares is not the
    rounded sum, but from there on it hides at least as much (computed in the tests).

    Every report gets the cohort's mean statistics: which client has high losses stays unknown, and a choice of clients
    by utility becomes one by speed. The guarantee holds only where the sum is all that the server sees. The simulator
    keeps to that. There is no cryptography here, and `fedbalancer.flower` refuses this summary: Flower's SecAgg+ sums
    the model updates of its own workflow, not the records of a message. Clients that collude with the server, or leave
    their noise out, weaken it for the others.
    """

    needs_secure_aggregation: ClassVar[bool] = True

    least: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.least, int) or self.least < 2:
            raise ValueError(f"least = {self.least} must be 2 clients or more: the sum of one is that client's own")
        if 0 < self.deviation < LEAST_DEVIATION:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier} shared by least = {self.least} clients is "
                f"{self.deviation:.3g} for each, which must be {LEAST_DEVIATION} or more: take a smaller least"
            )

    def release(self, fresh: bool) -> Release:
        return replace(super().release(fresh), mechanism="secagg-histogram")

    @property
    def deviation(self) -> float:
        return self.noise_multiplier / math.sqrt(self.least)

    def read(self, summaries: Sequence[Summary], order: Order) -> list[Summary]:
        if len(summaries) < self.least:
            return [replace(each, released=()) for each in summaries]
        pooled = of_bins.cleaned(np.sum([each.released for each in summaries], axis=0))
        mean = pooled / len(summaries)
        loss_sum = float(mean @ of_bins.middles(self._edges))
        return [self._statistics(each, pooled, mean, loss_sum, order) for each in summaries]

    def refuses(self, method: Any) -> str | None:
        """Whether the method steers by what is told of single clients."""
        if method.aggregate.needs_losses:
            return f"{type(method.aggregate).__name__} weighs clients by their losses, of which only the sum is known"
        return None
