"""Control of the two ratios by how fast the losses of returning clients fall."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.types import FloatArray, RoundResult, ServerState, Setup
from fedbalancer.server.pace.ratio_control import clipped

ENOUGH = 3
"""Values that it takes on both sides for a difference to mean anything."""
CLEAR = 2.0
"""Standard errors between two means from which on nobody waits for the rest of the window."""
LEAST_LOSS = 1e-9


def _none() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class ProgressState:
    """The two ratios; every client's last mean loss (NaN: none yet) and the clock then; the paces that were seen with
    these ratios and with those before; for how many rounds these have held; which way the last step went."""

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    losses: FloatArray = field(default_factory=_none)
    told_s: FloatArray = field(default_factory=_none)
    paces: FloatArray = field(default_factory=_none)
    before: FloatArray = field(default_factory=_none)
    rounds: int = 0
    direction: int = 1
    utility: float | None = None


@dataclass(frozen=True)
class ProgressControl(PacePolicy):
    """Ours, in place of Algorithm 3: goes on in a direction (sharper selection and shorter deadline, or the reverse)
    while the losses of clients that come again fall at least as fast as before the last step, and turns otherwise.

    How fast is the fall of a client's mean loss between two of its reports, as a power of the clock: the slope of its
    logarithm over that of the seconds. A loss that falls like a power of time has the same slope early and late, where
    the paper's utility, loss per second of deadline, falls as training goes on and jumps with every deadline. A window
    ends after `w` rounds, or as soon as the difference is `CLEAR`.

    Losses are comparable only if they are of the same samples: `utility_samples=all`.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: int = 10
    lss: float = 0.05
    dss: float = 0.05

    def init(self, setup: Setup) -> ProgressState:
        return ProgressState()

    def refuses(self, method: Any) -> str | None:
        """Losses of other samples in every round say nothing of progress."""
        if method.summary.utility_samples == "all":
            return None
        return "ProgressControl compares a client's losses over rounds, which takes utility_samples=all"

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ProgressState:
        own: ProgressState = state.pace
        more = np.full(len(state.ledger.clients) - len(own.losses), math.nan)
        losses, told_s = np.append(own.losses, more), np.append(own.told_s, more)
        told = [report for report in result.reports if report.summary.loss_count > 0]
        rows = state.ledger.rows(tuple(report.client for report in told))
        now_s = state.clock_s + result.window_s + result.seconds
        new = np.maximum([report.summary.loss_mean for report in told], LEAST_LOSS)
        again = (told_s[rows] > 0) & (told_s[rows] < now_s)
        seconds = np.log(now_s / told_s[rows][again])
        paces = np.log(losses[rows][again] / new[again]) / seconds
        losses[rows], told_s[rows] = new, now_s
        seen = replace(own, losses=losses, told_s=told_s, utility=float(paces.mean()) if len(paces) else None)
        return self.step(seen, paces)

    def step(self, pace: ProgressState, paces: FloatArray) -> ProgressState:
        """The ratios after a round in which these paces were seen."""
        paces, rounds = np.append(pace.paces, paces), pace.rounds + 1
        if len(paces) < ENOUGH or (rounds < self.w and len(pace.before) and not _clear(pace.before, paces)):
            return replace(pace, paces=paces, rounds=rounds)
        slower = len(pace.before) > 0 and paces.mean() < pace.before.mean()
        direction = -pace.direction if slower else pace.direction
        return replace(
            pace,
            loss_threshold_ratio=clipped(pace.loss_threshold_ratio + direction * self.lss),
            deadline_ratio=clipped(pace.deadline_ratio - direction * self.dss),
            before=paces, paces=_none(), rounds=0, direction=direction,
        )  # fmt: skip


def _clear(before: FloatArray, now: FloatArray) -> bool:
    """Whether the means of two samples are far apart (Welch)."""
    if min(len(before), len(now)) < ENOUGH:
        return False
    error = math.sqrt(before.var(ddof=1) / len(before) + now.var(ddof=1) / len(now))
    return bool(abs(now.mean() - before.mean()) > CLEAR * error)
