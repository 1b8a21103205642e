"""Robust aggregation per parameter.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowHalf
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import sort_by_client


@dataclass(frozen=True)
class Median(Aggregator):
    """Coordinate-wise median: each parameter moves by the median of the clients' updates.

    A minority of clients cannot move a parameter far. All clients count equally (Yin et al., "Byzantine-Robust
    Distributed Learning: Towards Optimal Statistical Rates", ICML 2018).

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+median").aggregate
        Median()
    """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in sort_by_client(reports)])
        return (state.weights + np.median(updates, axis=0)).astype(np.float32), None


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Coordinate-wise trimmed mean: drops the lowest and highest int(beta n) values of each parameter.

    All clients count equally (Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML 2018).

    Args:
        beta: Share of the n updates to drop at each end.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+trimmedmean").aggregate
        TrimmedMean(beta=0.2)
    """

    beta: BelowHalf = 0.2

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in sort_by_client(reports)])
        cut = int(self.beta * len(updates))
        if cut:
            updates = np.partition(updates, (cut, len(updates) - cut - 1), axis=0)[cut : len(updates) - cut]
        return (state.weights + updates.mean(axis=0, dtype=np.float64)).astype(np.float32), None
