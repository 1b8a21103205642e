"""No loss threshold: every sample is over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, Private, ThresholdPolicy
from fedbalancer.core.types import ServerState, Setup


@dataclass(frozen=True)
class NoThreshold(ThresholdPolicy):
    """A threshold of zero in every round."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def threshold(self, setup: Setup, state: ServerState) -> float:
        return 0.0
