"""FedAvgM: momentum on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update


@dataclass(frozen=True, eq=False)
class Velocity:
    """The running sum of mean updates; empty before the first round."""

    value: FloatArray


@dataclass(frozen=True)
class ServerMomentum(Aggregator):
    """v = beta v + D, x += eta v, with D the mean update (Hsu et al., "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019)."""

    beta: float = 0.9
    eta: float = 1.0

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Velocity]:
        velocity = mean_update(reports)
        old: Velocity = state.aggregate
        if len(old.value):
            velocity = self.beta * old.value + velocity
        return (state.weights + self.eta * velocity).astype(np.float32), Velocity(velocity)
