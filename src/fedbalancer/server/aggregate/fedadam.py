"""FedAdam: Adam on the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbalancer.server.aggregate.adaptive import Moments, stepped
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class FedAdam:
    """m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, x += eta' m / (sqrt(v) + tau), with D the mean update.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. Departures, both as in Flower: v starts at
    0 (there: at least tau^2), and eta' = eta sqrt(1 - b2^(r + 1)) / (1 - b1^(r + 1)) corrects for that in early rounds.
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
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            self.beta_2 * old.second + (1 - self.beta_2) * delta**2,
        )
        power = state.round + 2  # the round that is being aggregated is round + 1, and Flower raises to one more
        eta = self.eta * math.sqrt(1 - self.beta_2**power) / (1 - self.beta_1**power)
        return stepped(state, moments, eta, self.tau), moments
