"""A report that comes too late joins the round in which it comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, ServerState, Setup


def staleness_weight(staleness: int, power: float = 0.5) -> float:
    """(1 + tau)^-power: what a report is worth that comes tau rounds after its own (FedBuff's, with power 1/2).

    >>> staleness_weight(0), staleness_weight(3)
    (1.0, 0.5)
    """
    return float((1 + staleness) ** -power)


@dataclass(frozen=True)
class Joins(LatePolicy):
    """Work that is late is not lost: the client goes on, nobody asks it for anything else, and its report counts in the
    round in which it comes with its samples times (1 + tau)^-`power`, tau the rounds in between. Rounds close as they
    would without it: only reports of the round itself count for its quorum, and only they are seen by the policies
    that steer deadline, threshold and pace."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    power: float = 0.5

    def refuses(self, method: Any) -> str | None:
        sound = 0 <= self.power < math.inf
        return None if sound else f"Joins(power={self.power}) must have a power of at least 0, so that age never adds"

    def rule(self) -> LateRule:
        return "joins"

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [replace(each, weight=each.weight * staleness_weight(each.staleness, self.power)) for each in reports]
