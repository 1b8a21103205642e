"""Server optimizers, which use the clients' mean update as a gradient: momentum, FedExP, Adam, Yogi and Adagrad.

The adaptive ones are from Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.fields import BelowOne, Step
from fedbalancer.core.types import FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import MeanAggregator, MeanUpdate


@dataclass(frozen=True, eq=False)
class Velocity:
    """State of momentum.

    Args:
        value: Decaying sum of mean updates, one value per parameter; empty before the first round.
    """

    value: FloatArray


@dataclass(frozen=True)
class ServerMomentum(MeanAggregator):
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

    handles_parts: ClassVar[bool] = True

    beta: BelowOne = 0.9
    eta: Step = 1.0

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Velocity]:
        velocity = mean.value
        old: Velocity = state.aggregate
        if len(old.value):
            velocity = self.beta * old.value + velocity
        return (state.weights + self.eta * velocity).astype(np.float32), Velocity(velocity)


def extrapolation_factor(mean: MeanUpdate) -> float:
    """Return FedExP's step length as a multiple of the mean update.

    The factor is sum p |D_i|^2 / (2 |mean|^2), where p are the normalised client weights. It is at least 1 and at most
    half the effective number of clients, 1 / sum p^2. Clients that agree give 1; n clients with orthogonal updates give
    n / 2.

    Args:
        mean: The mean update, with the squared norms of the single updates.

    Returns:
        The factor, or 1 if the mean update is 0.
    """
    shares = np.array(mean.weights) / sum(mean.weights)
    length = float(np.dot(mean.value, mean.value))
    if length == 0:
        return 1.0
    return max(1.0, min(float(shares @ mean.squares) / (2 * length), 1 / (2 * float(shares @ shares))))


@dataclass(frozen=True)
class FedExP(MeanAggregator):
    """FedExP: a longer server step where clients disagree.

    x += eta D, where D is the mean update and eta its `extrapolation_factor` (Jhunjhunwala, Wang and Joshi, "FedExP:
    Speeding Up Federated Averaging via Extrapolation", ICLR 2023). It has no parameters.

    Differences from the paper: clients count by their weights, which are equal in the paper. The upper bound is ours;
    the paper adds a constant to the denominator. The paper evaluates the mean of the last two models.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedexp").aggregate
        FedExP()
    """

    needs_norms: ClassVar[bool] = True

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, None]:
        return (state.weights + extrapolation_factor(mean) * mean.value).astype(np.float32), None


@dataclass(frozen=True)
class ExtrapolatedMomentum(MeanAggregator):
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

    needs_norms: ClassVar[bool] = True

    beta: BelowOne = 0.5

    def init(self, setup: Setup) -> Velocity:
        return Velocity(np.zeros(0))

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Velocity]:
        velocity, old = extrapolation_factor(mean) * mean.value, state.aggregate.value
        if len(old):
            velocity = self.beta * old + velocity
        return (state.weights + velocity).astype(np.float32), Velocity(velocity)


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
class FedAdam(MeanAggregator):
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

    handles_parts: ClassVar[bool] = True

    eta: Step = 0.01
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Moments]:
        delta = mean.value
        old: Moments = state.aggregate.or_zeros(len(delta))
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            self.beta_2 * old.second + (1 - self.beta_2) * delta**2,
        )
        power = state.round + 2  # this is round + 1, and Flower's exponent is one more
        eta = self.eta * math.sqrt(1 - self.beta_2**power) / (1 - self.beta_1**power)
        return _adaptive_step(state, moments, eta, self.tau), moments


@dataclass(frozen=True)
class FedYogi(MeanAggregator):
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

    handles_parts: ClassVar[bool] = True

    eta: Step = 0.01
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Moments]:
        delta = mean.value
        old: Moments = state.aggregate.or_zeros(len(delta))
        squared = delta**2
        moments = Moments(
            self.beta_1 * old.first + (1 - self.beta_1) * delta,
            old.second - (1 - self.beta_2) * squared * np.sign(old.second - squared),
        )
        return _adaptive_step(state, moments, self.eta, self.tau), moments


@dataclass(frozen=True)
class FedAdagrad(MeanAggregator):
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

    handles_parts: ClassVar[bool] = True

    eta: Step = 0.01
    tau: Step = 1e-3

    def init(self, setup: Setup) -> Moments:
        return Moments.empty()

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Moments]:
        delta = mean.value
        moments = Moments(delta, state.aggregate.or_zeros(len(delta)).second + delta**2)
        return _adaptive_step(state, moments, self.eta, self.tau), moments
