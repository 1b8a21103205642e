"""A report that comes too late is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, Private, Stateless
from fedbalancer.core.types import ClientReport, LateRule, ServerState, Setup


@dataclass(frozen=True)
class Lost(Stateless):
    """FedAvg, and every synchronous method: who is late has worked in vain, and is free for the next round."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def rule(self) -> LateRule:
        return "lost"

    def room(self, setup: Setup, state: ServerState) -> int:
        return setup.clients_per_round

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        return quorum

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return reports
