"""Algorithm 3: control of the loss-threshold ratio and the deadline ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.fields import Rounds, Share
from fedbalancer.core.types import RoundResult, ServerState, Setup
from fedbalancer.server.pace.utility import round_utility


@dataclass(frozen=True)
class PaceState:
    """State of `RatioControl`.

    Args:
        loss_threshold_ratio: Current ltr.
        deadline_ratio: Current ddlr.
        utilities: The last `2 w` utilities.
        observed: Number of utilities observed in total.
        utility: Utility of the last round; None if no client completed it.
    """

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    utilities: tuple[float, ...] = ()
    observed: int = 0
    utility: float | None = None


@dataclass(frozen=True)
class RatioControl(PacePolicy):
    """Algorithm 3: adapts both ratios every `w` rounds.

    If the utility of the w rounds before last exceeds that of the last w rounds, training is stable: select fewer
    samples (ltr + lss) and shorten the deadline (ddlr - dss). Otherwise, do the reverse. Both ratios are clipped to [0,
    1]. The client's summary decides which samples the utility covers (`loss_sum`, `loss_count`).

    Differences from the paper: the first comparison happens when 2 w utilities exist (the paper's earlier one is
    against an empty sum and changes nothing). A round that no client completes has no utility and does not count, as in
    the authors' code. That code skips a step that would leave [0, 1]; here it is clipped, as in the paper.

    Args:
        w: Rounds per window.
        lss: Step of the loss-threshold ratio.
        dss: Step of the deadline ratio.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer[w=5]").pace
        RatioControl(w=5, lss=0.05, dss=0.05)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: Rounds = 20
    lss: Share = 0.05
    dss: Share = 0.05

    def init(self, setup: Setup) -> PaceState:
        return PaceState()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PaceState:
        own: PaceState = state.pace
        utility = round_utility(result)
        return replace(own, utility=None) if utility is None else self.step(own, utility)

    def step(self, pace: PaceState, utility: float) -> PaceState:
        """Return the state after one more utility.

        Example:
            >>> control, pace = RatioControl(w=1), PaceState()
            >>> for utility in (3.0, 2.0, 1.0):
            ...     pace = control.step(pace, utility)
            >>> pace.loss_threshold_ratio, pace.deadline_ratio
            (0.1, 0.9)
        """
        utilities = (*pace.utilities, utility)[-2 * self.w :]
        observed = pace.observed + 1
        ltr, ddlr = pace.loss_threshold_ratio, pace.deadline_ratio
        if observed % self.w == 0 and observed >= 2 * self.w:
            past, recent = math.fsum(utilities[: self.w]), math.fsum(utilities[self.w :])
            sign = 1 if past > recent else -1
            ltr, ddlr = clip_ratio(ltr + sign * self.lss), clip_ratio(ddlr - sign * self.dss)
        return PaceState(ltr, ddlr, utilities, observed, utility)


def clip_ratio(ratio: float) -> float:
    """Clip a ratio to [0, 1]."""
    # Rounded so that twenty steps of 0.05 make exactly 1.
    return min(max(round(ratio, 12), 0.0), 1.0)
