"""A report that comes too late is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import LateRule


@dataclass(frozen=True)
class Lost(LatePolicy):
    """FedAvg, and every synchronous method: who is late has worked in vain, and is free for the next round."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def rule(self) -> LateRule:
        return "lost"
