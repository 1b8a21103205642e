"""Momentum on the server over extrapolated mean updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.fedexp import extrapolation
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.server.aggregate.momentum import Velocity


@dataclass(frozen=True)
class ExtrapolatedMomentum(Aggregator):
    """Ours: v = beta v + eta D, x += v, with D the mean update and eta FedExP's extrapolation. Short rounds bring
    short, noisy updates: momentum carries them over rounds, and where clients disagree their mean is not taken for so
    little."""

    beta: float = 0.5

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Velocity]:
        mean = mean_update(reports)
        velocity, old = extrapolation(reports, mean) * mean, state.aggregate.value
        if len(old):
            velocity = self.beta * old + velocity
        return (state.weights + velocity).astype(np.float32), Velocity(velocity)
