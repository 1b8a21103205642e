"""Robust means: coordinate-wise median and trimmed mean, and Krum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowHalf, Count
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update, sort_by_client


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


@dataclass(frozen=True)
class Krum(Aggregator):
    """Krum: average the updates that are closest to their neighbours.

    The score of an update is the sum of its squared distances to its n - f - 2 nearest neighbours (at least one). The
    `keep` updates with the lowest scores are averaged; ties go to the smaller client id (Blanchard et al., "Machine
    Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017).

    Args:
        malicious: Assumed share of malicious clients; f is this share of n.
        keep: Number of updates to average: 1 for Krum, more for Multi-Krum.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+krum").aggregate
        Krum(malicious=0.2, keep=1)
    """

    malicious: BelowHalf = 0.2
    keep: Count = 1

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        ordered = sort_by_client(reports)
        scores = krum_scores(np.stack([report.update for report in ordered]), int(self.malicious * len(ordered)))
        kept = [ordered[row] for row in np.argsort(scores, kind="stable")[: self.keep]]
        return (state.weights + mean_update(kept)).astype(np.float32), None


def krum_scores(updates: Weights, malicious: int) -> FloatArray:
    """Return each update's sum of squared distances to its n - f - 2 nearest neighbours.

    Args:
        updates: One row per client.
        malicious: Assumed number of malicious clients, f.

    Returns:
        One score per row.

    Example:
        >>> krum_scores(np.array([[0.0], [1.0], [3.0], [9.0]], dtype=np.float32), malicious=1)
        array([ 1.,  1.,  4., 36.])
    """
    distances = np.array([((updates - one).astype(np.float64) ** 2).sum(axis=1) for one in updates])
    nearest = max(len(updates) - malicious - 2, 1)
    return np.asarray(np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1))
