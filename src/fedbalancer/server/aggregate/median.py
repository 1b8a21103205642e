"""The coordinate-wise median of the updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.protocols import Stateless
from fedbalancer.server.aggregate.mean import in_order
from fedbalancer.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class Median(Stateless):
    """Every parameter moves by the median of the clients' moves, all alike whatever their samples (Yin et al.,
    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018)."""

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in in_order(reports)])
        return (state.weights + np.median(updates, axis=0)).astype(np.float32), None
