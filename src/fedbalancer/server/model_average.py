"""Model averages: which model is evaluated and saved. Clients always train from the last round's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ModelAverage, Private
from fedbalancer.core.types import FloatArray, ServerState, Setup, Weights

__all__ = ["AveragedModel", "LastModel"]


@dataclass(frozen=True)
class LastModel(ModelAverage):
    """No average: the model of the last round is evaluated and saved.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").model_average
        LastModel()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def model(self, state: ServerState) -> Weights:
        return state.weights


@dataclass(frozen=True, eq=False)
class AverageState:
    """State of `AveragedModel`.

    Args:
        value: The current average; empty before the first round.
        models: Number of models averaged.
    """

    value: FloatArray
    models: int = 0


@dataclass(frozen=True)
class AveragedModel(ModelAverage):
    """Polynomial-decay average of the models of recent rounds.

    a_t = (1 - c) a_(t-1) + c w_t with c = (eta + 1) / (eta + t), so that about the last t / (eta + 1) models count. The
    average removes the noise of single rounds and forgets early models. Clients still train from w_t (Shamir and Zhang,
    "Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013).

    Args:
        eta: Larger values average over fewer recent models.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+averaged").model_average
        AveragedModel(eta=8.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    eta: float = 8.0

    def init(self, setup: Setup) -> AverageState:
        return AverageState(np.zeros(0))

    def after(self, setup: Setup, state: ServerState, weights: Weights) -> AverageState:
        old: AverageState = state.model_average
        models = old.models + 1
        share = (self.eta + 1) / (self.eta + models)
        fresh = weights.astype(np.float64)
        return AverageState(fresh if models == 1 else old.value + share * (fresh - old.value), models)

    def model(self, state: ServerState) -> Weights:
        own: AverageState = state.model_average
        return own.value.astype(np.float32) if own.models else state.weights
