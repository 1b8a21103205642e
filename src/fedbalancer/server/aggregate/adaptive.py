"""The adaptive server optimisers of Reddi et al. ("Adaptive Federated Optimization", ICLR 2021, Algorithm 2): they step
along the mean update of the clients as along a gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moment of the mean update, one value per parameter; empty before the first round."""

    first: FloatArray
    second: FloatArray

    @classmethod
    def none_yet(cls) -> Moments:
        return cls(np.zeros(0), np.zeros(0))

    def or_zeros(self, size: int) -> Moments:
        """These moments, or zeros if there are none yet."""
        return self if len(self.first) == size else Moments(np.zeros(size), np.zeros(size))


def stepped(state: ServerState, moments: Moments, eta: float, tau: float) -> Weights:
    """x + eta m / (sqrt(v) + tau)."""
    return (state.weights + eta * moments.first / (np.sqrt(moments.second) + tau)).astype(np.float32)


@dataclass(frozen=True)
class FedAdam(Aggregator):
    """m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, x += eta' m / (sqrt(v) + tau), with D the mean update.

    Departures, both as in Flower: v starts at 0 (in the paper at least at tau^2), and eta' = eta sqrt(1 - b2^(r + 1)) /
    (1 - b1^(r + 1)) corrects for that in early rounds.
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


@dataclass(frozen=True)
class FedYogi(Aggregator):
    """m = b1 m + (1 - b1) D, v -= (1 - b2) D^2 sign(v - D^2), x += eta m / (sqrt(v) + tau), with D the mean update.

    Departure, as in Flower: v starts at 0.
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


@dataclass(frozen=True)
class FedAdagrad(Aggregator):
    """v += D^2, x += eta D / (sqrt(v) + tau), with D the mean update.

    Without momentum (the paper's beta_1 = 0), as in its experiments. Departure, as in Flower: v starts at 0.
    """

    eta: float = 0.01
    tau: float = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.none_yet()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        moments = Moments(delta, state.aggregate.or_zeros(len(delta)).second + delta**2)
        return stepped(state, moments, self.eta, self.tau), moments
