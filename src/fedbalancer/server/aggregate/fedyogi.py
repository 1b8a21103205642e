"""FedYogi: Adam's cousin whose second moment moves slowly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.server.aggregate.adaptive import Moments, stepped
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class FedYogi:
    """m = b1 m + (1 - b1) D, v -= (1 - b2) D^2 sign(v - D^2), x += eta m / (sqrt(v) + tau), with D the mean update.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. Departure, as in Flower: v starts at 0.
    """

    eta: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.none_yet()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        old: Moments = state.aggregate.or_zeros(len(delta))
        squared = delta**2
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            old.second - (1 - self.beta_2) * squared * np.sign(old.second - squared),
        )
        return stepped(state, moments, self.eta, self.tau), moments
