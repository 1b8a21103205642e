"""No loss threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, Private, ThresholdPolicy
from fedbalancer.core.types import ServerState, Setup


@dataclass(frozen=True)
class NoThreshold(ThresholdPolicy):
    """No selection: the threshold is zero in every round, so every sample reaches it.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").threshold
        NoThreshold()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def threshold(self, setup: Setup, state: ServerState) -> float:
        return 0.0
