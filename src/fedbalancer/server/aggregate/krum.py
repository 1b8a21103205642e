"""Krum: the update that lies closest to its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import in_order, mean_update


@dataclass(frozen=True)
class Krum(Aggregator):
    """Of n updates, each is scored by the sum of its squared distances to its n - f - 2 nearest ones (at least one),
    where f is a share `malicious` of n; the `keep` lowest scores are averaged: 1 for Krum, more for Multi-Krum.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017. Of equal
    scores the first client id wins.
    """

    malicious: float = 0.2
    keep: int = 1

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        ordered = in_order(reports)
        scores = krum_scores(np.stack([report.update for report in ordered]), int(self.malicious * len(ordered)))
        kept = [ordered[row] for row in np.argsort(scores, kind="stable")[: self.keep]]
        return (state.weights + mean_update(kept)).astype(np.float32), None


def krum_scores(updates: Weights, malicious: int) -> FloatArray:
    """The sum of squared distances to the n - f - 2 nearest others.

    >>> krum_scores(np.array([[0.0], [1.0], [3.0], [9.0]], dtype=np.float32), malicious=1)
    array([ 1.,  1.,  4., 36.])
    """
    distances = np.array([((updates - one).astype(np.float64) ** 2).sum(axis=1) for one in updates])
    nearest = max(len(updates) - malicious - 2, 1)
    return np.asarray(np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1))
