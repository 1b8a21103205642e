"""Ratios that do not move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, PacePolicy, Private
from fedbalancer.core.types import RoundResult, ServerState, Setup
from fedbalancer.server.pace.utility import round_utility


@dataclass(frozen=True)
class ConstantState:
    """Fixed ratios; the last round's utility is kept for the record."""

    loss_threshold_ratio: float
    deadline_ratio: float
    utility: float | None = None


@dataclass(frozen=True)
class ConstantPace(PacePolicy):
    """All samples and the long deadline by default: no control."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0

    def init(self, setup: Setup) -> ConstantState:
        return ConstantState(self.loss_threshold_ratio, self.deadline_ratio)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ConstantState:
        return ConstantState(self.loss_threshold_ratio, self.deadline_ratio, round_utility(result))
