"""An average of the last models, over a window that grows with training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ModelAverage, Private
from fedbalancer.core.types import FloatArray, ServerState, Setup, Weights


@dataclass(frozen=True, eq=False)
class Average:
    """The average so far (empty before the first round) and of how many models."""

    value: FloatArray
    models: int = 0


@dataclass(frozen=True)
class AveragedModel(ModelAverage):
    """Polynomial-decay averaging (Shamir and Zhang, "Stochastic Gradient Descent for Non-smooth Optimization", ICML
    2013): a_t = (1 - c) a_(t-1) + c w_t with c = (eta + 1) / (eta + t), so that about the last t / (eta + 1) models
    count. The noise of single rounds goes, the early models are forgotten. Clients train from w_t."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    eta: float = 8.0

    def init(self, setup: Setup) -> Average:
        return Average(np.zeros(0))

    def after(self, setup: Setup, state: ServerState, weights: Weights) -> Average:
        old: Average = state.model_average
        models = old.models + 1
        share = (self.eta + 1) / (self.eta + models)
        fresh = weights.astype(np.float64)
        return Average(fresh if models == 1 else old.value + share * (fresh - old.value), models)

    def model(self, state: ServerState) -> Weights:
        own: Average = state.model_average
        return own.value.astype(np.float32) if own.models else state.weights
