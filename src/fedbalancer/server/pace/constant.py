"""Constant ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, PacePolicy, Private
from fedbalancer.core.types import RoundResult, ServerState, Setup
from fedbalancer.server.pace.utility import round_utility


@dataclass(frozen=True)
class ConstantState:
    """State of `ConstantPace`.

    Args:
        loss_threshold_ratio: The constant ltr.
        deadline_ratio: The constant ddlr.
        utility: Utility of the last round, for the record.
    """

    loss_threshold_ratio: float
    deadline_ratio: float
    utility: float | None = None


@dataclass(frozen=True)
class ConstantPace(PacePolicy):
    """No control: both ratios stay constant. The defaults select all samples and use the long deadline.

    Args:
        loss_threshold_ratio: Position of the threshold between ll and lh (Algorithm 2), from 0 to 1.
        deadline_ratio: Position of the deadline between dl and dh (Algorithm 4), from 0 to 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer", pace=ConstantPace(deadline_ratio=0.5)).pace
        ConstantPace(loss_threshold_ratio=0.0, deadline_ratio=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0

    def init(self, setup: Setup) -> ConstantState:
        return ConstantState(self.loss_threshold_ratio, self.deadline_ratio)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ConstantState:
        return ConstantState(self.loss_threshold_ratio, self.deadline_ratio, round_utility(result))
