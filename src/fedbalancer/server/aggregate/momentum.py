"""Momentum on the server (FedAvgM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowOne, Step
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update


@dataclass(frozen=True, eq=False)
class Velocity:
    """State of momentum.

    Args:
        value: Decaying sum of mean updates, one value per parameter; empty before the first round.
    """

    value: FloatArray


@dataclass(frozen=True)
class ServerMomentum(Aggregator):
    """FedAvgM: momentum on the server.

    v = beta v + D, x += eta v, where D is the mean update (Hsu et al., "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019).

    Args:
        beta: Momentum coefficient.
        eta: Server learning rate.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+momentum").aggregate
        ServerMomentum(beta=0.9, eta=1.0)
    """

    beta: BelowOne = 0.9
    eta: Step = 1.0

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Velocity]:
        velocity = mean_update(reports)
        old: Velocity = state.aggregate
        if len(old.value):
            velocity = self.beta * old.value + velocity
        return (state.weights + self.eta * velocity).astype(np.float32), Velocity(velocity)
