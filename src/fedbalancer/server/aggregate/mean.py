"""The weighted mean of FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.protocols import Stateless
from fedbalancer.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class WeightedMean(Stateless):
    """Weights plus the mean update of the successful clients, each weighted by its trained samples.

    Summed in double precision in order of client id: the same bytes whatever the order of arrival.
    """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Weights:
        total = np.zeros(state.weights.shape, dtype=np.float64)
        weight = 0.0
        for report in sorted(reports, key=lambda report: report.client):
            total += report.weight * report.update.astype(np.float64)
            weight += report.weight
        return (state.weights + total / weight).astype(np.float32)
