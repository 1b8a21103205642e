"""Late reports join the round in which they arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, ServerState, Setup


def staleness_weight(staleness: int, power: float = 0.5) -> float:
    """Return (1 + tau)^-power, the weight of a report that arrives tau rounds late (FedBuff uses power 1/2).

    Args:
        staleness: Number of rounds tau.
        power: Strength of the discount.

    Returns:
        A factor from 0 to 1.

    Example:
        >>> staleness_weight(0), staleness_weight(3)
        (1.0, 0.5)
    """
    return float((1 + staleness) ** -power)


@dataclass(frozen=True)
class Joins(LatePolicy):
    """A late report counts in the round in which it arrives, with a lower weight.

    The client continues its work and is not selected again meanwhile. Its weight is its number of samples times (1 +
    tau)^-`power`, where tau is the number of rounds since it was selected. Late reports do not count towards the
    quorum, and the client, threshold, pace and deadline policies do not see them.

    Args:
        power: Strength of the discount by age.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+late").late
        Joins(power=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    power: float = 0.5

    def refuses(self, method: Any) -> str | None:
        sound = 0 <= self.power < math.inf
        return None if sound else f"Joins(power={self.power}) must have a power of at least 0, so that age never adds"

    def rule(self) -> LateRule:
        return "joins"

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [replace(each, weight=each.weight * staleness_weight(each.staleness, self.power)) for each in reports]
