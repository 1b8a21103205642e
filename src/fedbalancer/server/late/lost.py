"""Late reports are discarded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import LateRule


@dataclass(frozen=True)
class Lost(LatePolicy):
    """Discards late reports, as FedAvg and every synchronous method do. The client is available for the next round.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").late
        Lost()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def rule(self) -> LateRule:
        return "lost"
