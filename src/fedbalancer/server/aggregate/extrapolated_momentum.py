"""Momentum over extrapolated mean updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowOne
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.fedexp import extrapolation_factor
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.server.aggregate.momentum import Velocity


@dataclass(frozen=True)
class ExtrapolatedMomentum(Aggregator):
    """Ours, used by canter: server momentum over extrapolated mean updates.

    v = beta v + eta D, x += v, where D is the mean update and eta FedExP's `extrapolation_factor`. Short rounds produce
    short, noisy updates: momentum averages them over rounds, and extrapolation lengthens the step where clients
    disagree.

    Args:
        beta: Momentum coefficient.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter").aggregate
        ExtrapolatedMomentum(beta=0.5)
    """

    beta: BelowOne = 0.5

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Velocity]:
        mean = mean_update(reports)
        velocity, old = extrapolation_factor(reports, mean) * mean, state.aggregate.value
        if len(old):
            velocity = self.beta * old + velocity
        return (state.weights + velocity).astype(np.float32), Velocity(velocity)
