"""Adaptive server optimisers, which use the clients' mean update as a gradient.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowOne, Step
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of the mean update.

    Args:
        first: First moment per parameter; empty before the first round.
        second: Second moment per parameter; empty before the first round.
    """

    first: FloatArray
    second: FloatArray

    @classmethod
    def empty(cls) -> Moments:
        """Return the moments before the first round."""
        return cls(np.zeros(0), np.zeros(0))

    def or_zeros(self, size: int) -> Moments:
        """Return these moments, or zeros if they are empty."""
        return self if len(self.first) == size else Moments(np.zeros(size), np.zeros(size))


def _adaptive_step(state: ServerState, moments: Moments, eta: float, tau: float) -> Weights:
    """Return x + eta m / (sqrt(v) + tau)."""
    return (state.weights + eta * moments.first / (np.sqrt(moments.second) + tau)).astype(np.float32)


@dataclass(frozen=True)
class FedAdam(Aggregator):
    """Adam on the server.

    m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, x += eta' m / (sqrt(v) + tau), where D is the mean update.

    Differences from the paper, both as in Flower: v starts at 0 (in the paper at tau^2 or more), and eta' = eta sqrt(1
    - b2^(r + 1)) / (1 - b1^(r + 1)) corrects for this in early rounds.

    Args:
        eta: Server learning rate.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        tau: Added to the denominator; larger values make the method less adaptive.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedadam").aggregate
        FedAdam(eta=0.01, beta_1=0.9, beta_2=0.99, tau=0.001)
    """

    eta: Step = 0.01
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        old: Moments = state.aggregate.or_zeros(len(delta))
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            self.beta_2 * old.second + (1 - self.beta_2) * delta**2,
        )
        power = state.round + 2  # this is round + 1, and Flower's exponent is one more
        eta = self.eta * math.sqrt(1 - self.beta_2**power) / (1 - self.beta_1**power)
        return _adaptive_step(state, moments, eta, self.tau), moments


@dataclass(frozen=True)
class FedYogi(Aggregator):
    """Yogi on the server.

    m = b1 m + (1 - b1) D, v -= (1 - b2) D^2 sign(v - D^2), x += eta m / (sqrt(v) + tau), where D is the mean update.

    Difference from the paper, as in Flower: v starts at 0.

    Args:
        eta: Server learning rate.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        tau: Added to the denominator; larger values make the method less adaptive.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedyogi").aggregate
        FedYogi(eta=0.01, beta_1=0.9, beta_2=0.99, tau=0.001)
    """

    eta: Step = 0.01
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        old: Moments = state.aggregate.or_zeros(len(delta))
        squared = delta**2
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            old.second - (1 - self.beta_2) * squared * np.sign(old.second - squared),
        )
        return _adaptive_step(state, moments, self.eta, self.tau), moments


@dataclass(frozen=True)
class FedAdagrad(Aggregator):
    """Adagrad on the server.

    v += D^2, x += eta D / (sqrt(v) + tau), where D is the mean update. There is no momentum (beta_1 = 0), as in the
    paper's experiments.

    Difference from the paper, as in Flower: v starts at 0.

    Args:
        eta: Server learning rate.
        tau: Added to the denominator; larger values make the method less adaptive.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedadagrad").aggregate
        FedAdagrad(eta=0.01, tau=0.001)
    """

    eta: Step = 0.01
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Moments]:
        delta = mean_update(reports)
        moments = Moments(delta, state.aggregate.or_zeros(len(delta)).second + delta**2)
        return _adaptive_step(state, moments, self.eta, self.tau), moments
