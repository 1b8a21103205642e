"""Aggregation that looks at every parameter for itself, so that a few clients cannot move it far (Yin et al.,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018). All clients count alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import in_order


@dataclass(frozen=True)
class Median(Aggregator):
    """Every parameter moves by the median of the clients' moves."""

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in in_order(reports)])
        return (state.weights + np.median(updates, axis=0)).astype(np.float32), None


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Of every parameter's moves the lowest and the highest int(beta n) are left out; the mean of the others counts."""

    beta: float = 0.2

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in in_order(reports)])
        cut = int(self.beta * len(updates))
        if cut:
            updates = np.partition(updates, (cut, len(updates) - cut - 1), axis=0)[cut : len(updates) - cut]
        return (state.weights + updates.mean(axis=0, dtype=np.float64)).astype(np.float32), None
