"""The model of the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, ModelAverage, Private
from fedbalancer.core.types import ServerState, Weights


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
