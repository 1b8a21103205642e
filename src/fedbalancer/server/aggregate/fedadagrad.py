"""FedAdagrad: steps that shrink with all that was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbalancer.server.aggregate.adaptive import Moments, stepped
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class FedAdagrad:
    """v += D^2, x += eta D / (sqrt(v) + tau), with D the mean update.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 without momentum (their beta_1 = 0), as in
    their experiments. Departure, as in Flower: v starts at 0.
    """

    eta: float = 0.01
    tau: float = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.none_yet()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        moments = Moments(delta, state.aggregate.or_zeros(len(delta)).second + delta**2)
        return stepped(state, moments, self.eta, self.tau), moments
