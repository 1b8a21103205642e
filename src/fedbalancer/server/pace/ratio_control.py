"""Algorithm 3: control of the loss-threshold ratio and the deadline ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.types import RoundResult, ServerState, Setup
from fedbalancer.server.pace.utility import round_utility


@dataclass(frozen=True)
class PaceState:
    """The two ratios, the last `2 w` utilities, how many there have been, and the last round's own."""

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    utilities: tuple[float, ...] = ()
    observed: int = 0
    utility: float | None = None


@dataclass(frozen=True)
class RatioControl(PacePolicy):
    """Every `w` rounds: if the past w rounds' utility exceeds the last w rounds', training is stable, so select more
    sharply (ltr + lss) and wait less (ddlr - dss); otherwise the reverse. Both are clipped to [0, 1].

    Which samples the utility covers is the client's summary to say (`loss_sum`, `loss_count`). Departures: the first
    comparison is made when 2 w utilities exist (in the paper the earlier one is against an empty sum and changes
    nothing); a round in which nobody completed has no utility and does not count, as in the authors' code; that code
    skipped a step that would leave [0, 1], we clip as the paper does.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: int = 20
    lss: float = 0.05
    dss: float = 0.05

    def init(self, setup: Setup) -> PaceState:
        return PaceState()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PaceState:
        own: PaceState = state.pace
        utility = round_utility(result)
        return replace(own, utility=None) if utility is None else self.step(own, utility)

    def step(self, pace: PaceState, utility: float) -> PaceState:
        """The ratios after one more utility.

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
            ltr, ddlr = clipped(ltr + sign * self.lss), clipped(ddlr - sign * self.dss)
        return PaceState(ltr, ddlr, utilities, observed, utility)


def clipped(ratio: float) -> float:
    """A ratio, within 0 and 1."""
    # Rounded so that twenty steps of .05 make exactly 1.
    return min(max(round(ratio, 12), 0.0), 1.0)
