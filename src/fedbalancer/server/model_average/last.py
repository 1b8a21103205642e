"""The model of the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedbalancer.core.contracts import NOTHING, Private
from fedbalancer.core.types import ServerState, Setup, Weights


@dataclass(frozen=True)
class LastModel:
    """What clients train from is what is handed out."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def init(self, setup: Setup) -> Any:
        return None

    def after(self, setup: Setup, state: ServerState, weights: Weights) -> Any:
        return None

    def model(self, state: ServerState) -> Weights:
        return state.weights
