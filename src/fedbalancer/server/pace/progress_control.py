"""Ratio control by how fast the losses of returning clients decrease."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, PacePolicy, Private
from fedbalancer.core.types import FloatArray, RoundResult, ServerState, Setup
from fedbalancer.server.pace.ratio_control import clip_ratio

MIN_PACES = 3
"""Minimum number of values in both windows for a comparison."""
CLEAR = 2.0
"""Difference of two means, in standard errors, that ends a window early."""
MIN_LOSS = 1e-9


def _empty() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class ProgressState:
    """State of `ProgressControl`.

    Args:
        loss_threshold_ratio: Current ltr.
        deadline_ratio: Current ddlr.
        losses: Last mean loss of each client; NaN before its first report.
        reported_s: Clock time of that report.
        paces: Rates of decrease observed with the current ratios.
        previous_paces: Rates of decrease observed with the previous ratios.
        rounds: Number of rounds with the current ratios.
        direction: Direction of the last step: 1 or -1.
        utility: Mean rate of decrease in the last round; None if no client returned.
    """

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    losses: FloatArray = field(default_factory=_empty)
    reported_s: FloatArray = field(default_factory=_empty)
    paces: FloatArray = field(default_factory=_empty)
    previous_paces: FloatArray = field(default_factory=_empty)
    rounds: int = 0
    direction: int = 1
    utility: float | None = None


@dataclass(frozen=True)
class ProgressControl(PacePolicy):
    """Ours, an alternative to Algorithm 3: keeps its direction while losses fall at least as fast as before.

    The direction is towards fewer samples and shorter deadlines, or the reverse. It changes when the losses of
    returning clients fall more slowly than before the last step.

    The rate is the slope of the logarithm of a client's mean loss over the logarithm of time, between two of its
    reports. A loss that follows a power of time has a constant slope. The paper's utility, loss per second of deadline,
    decreases over training and jumps with every deadline. A window ends after `w` rounds, or as soon as the difference
    is `CLEAR`.

    Losses are comparable only if they cover the same samples, so the summary needs `utility_samples="all"`.

    Args:
        w: Most rounds per window.
        lss: Step of the loss-threshold ratio.
        dss: Step of the deadline ratio.

    Example:
        >>> control, state = ProgressControl(), ProgressState(previous_paces=np.array([1.0, 1.1, 0.9]))
        >>> control.step(state, np.array([0.1, 0.2, 0.3])).direction  # losses fall more slowly: turn round
        -1
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: int = 10
    lss: float = 0.05
    dss: float = 0.05

    def init(self, setup: Setup) -> ProgressState:
        return ProgressState()

    def refuses(self, method: Any) -> str | None:
        """Refuse a summary whose losses cover other samples in every round."""
        if method.summary.utility_samples == "all":
            return None
        return "ProgressControl compares a client's losses across rounds, which needs utility_samples=all"

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ProgressState:
        own: ProgressState = state.pace
        more = np.full(len(state.ledger.clients) - len(own.losses), math.nan)
        losses, reported_s = np.append(own.losses, more), np.append(own.reported_s, more)
        reports = [report for report in result.reports if report.summary.loss_count > 0]
        rows = state.ledger.rows(tuple(report.client for report in reports))
        now_s = state.clock_s + result.window_s + result.seconds
        new = np.maximum([report.summary.loss_mean for report in reports], MIN_LOSS)
        again = (reported_s[rows] > 0) & (reported_s[rows] < now_s)
        seconds = np.log(now_s / reported_s[rows][again])
        paces = np.log(losses[rows][again] / new[again]) / seconds
        losses[rows], reported_s[rows] = new, now_s
        seen = replace(own, losses=losses, reported_s=reported_s, utility=float(paces.mean()) if len(paces) else None)
        return self.step(seen, paces)

    def step(self, pace: ProgressState, paces: FloatArray) -> ProgressState:
        """Return the state after a round in which these rates were observed."""
        paces, rounds = np.append(pace.paces, paces), pace.rounds + 1
        if len(paces) < MIN_PACES or (
            rounds < self.w and len(pace.previous_paces) and not _is_clear(pace.previous_paces, paces)
        ):
            return replace(pace, paces=paces, rounds=rounds)
        slower = len(pace.previous_paces) > 0 and paces.mean() < pace.previous_paces.mean()
        direction = -pace.direction if slower else pace.direction
        return replace(
            pace,
            loss_threshold_ratio=clip_ratio(pace.loss_threshold_ratio + direction * self.lss),
            deadline_ratio=clip_ratio(pace.deadline_ratio - direction * self.dss),
            previous_paces=paces, paces=_empty(), rounds=0, direction=direction,
        )  # fmt: skip


def _is_clear(before: FloatArray, now: FloatArray) -> bool:
    """Return whether the means of two samples clearly differ (Welch's test)."""
    if min(len(before), len(now)) < MIN_PACES:
        return False
    error = math.sqrt(before.var(ddof=1) / len(before) + now.var(ddof=1) / len(now))
    return bool(abs(now.mean() - before.mean()) > CLEAR * error)
