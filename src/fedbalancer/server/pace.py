"""Pace policies: control of the loss-threshold ratio and the deadline ratio (Algorithm 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, PacePolicy, Private
from fedbalancer.core.fields import Bounds, Rounds, Share
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup

__all__ = ["ConstantPace", "MedianControl", "PaceState", "ProgressControl", "RatioControl", "round_utility"]


def round_utility(result: RoundResult) -> float | None:
    """Return U_R = LSum / (L ddl) over the clients that completed the round (Algorithm 3, line 2).

    Args:
        result: The round. Without a finite deadline, its duration replaces ddl.

    Returns:
        The utility, or None if no client completed.
    """
    count = math.fsum(report.summary.loss_count for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
    if count <= 0 or seconds <= 0:
        return None
    return math.fsum(report.summary.loss_sum for report in result.reports) / (count * seconds)


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
    """Clip a ratio to [0, 1].

    Args:
        ratio: The ratio after a step.
    """
    # Rounded so that twenty steps of 0.05 make exactly 1.
    return min(max(round(ratio, 12), 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class MedianState:
    """State of `MedianControl`.

    Args:
        loss_threshold_ratio: Current ltr.
        deadline_ratio: Current ddlr.
        losses_per_s: Clients' mean losses per second in the last `2 w` rounds that had reports.
        reported_in: The number of that round for each of these values, counting rounds with reports only.
        observed: Number of rounds that had reports.
        utility: Utility of the last round; None if it had no reports.
    """

    loss_threshold_ratio: float = 0.0
    deadline_ratio: float = 1.0
    losses_per_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    reported_in: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    observed: int = 0
    utility: float | None = None


@dataclass(frozen=True)
class MedianControl(PacePolicy):
    """Ours, used by `+robust`: `RatioControl` with medians and proportional steps.

    It compares the last w rounds with the w rounds before by the median of all clients' mean losses per second. The
    paper sums losses, of which one client can claim any number.

    A step is lss (or dss) times the relative change of utility over `full`, at most 1. In the paper's rule a small lie
    can reverse a step if both windows are nearly equal; here it changes the step as little as it moves the median.
    Where utility halves or more, a step has the paper's length.

    Args:
        w: Rounds per window.
        lss: Largest step of the loss-threshold ratio.
        dss: Largest step of the deadline ratio.
        full: Relative change of utility that gives a full step.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+robust").pace
        MedianControl(w=20, lss=0.05, dss=0.05, full=0.5)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    w: Rounds = 20
    lss: Share = 0.05
    dss: Share = 0.05
    full: Annotated[float, Bounds(gt=0)] = 0.5

    def init(self, setup: Setup) -> MedianState:
        return MedianState()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> MedianState:
        own: MedianState = state.pace
        losses_per_s = self.losses_per_second(result)
        if not len(losses_per_s):
            return MedianState(
                own.loss_threshold_ratio, own.deadline_ratio, own.losses_per_s, own.reported_in, own.observed
            )
        return self.step(own, losses_per_s)

    @staticmethod
    def losses_per_second(result: RoundResult) -> FloatArray:
        """Return each reporting client's mean loss per second of the deadline, or of the round without a deadline."""
        deadline_s = result.plan.order.deadline_s
        seconds = deadline_s if math.isfinite(deadline_s) else result.seconds
        losses = [report.summary.loss_mean for report in result.reports if report.summary.loss_count > 0]
        return np.array(losses) / seconds if seconds > 0 else np.zeros(0)

    def step(self, pace: MedianState, losses_per_s: FloatArray) -> MedianState:
        """Return the state after one more round."""
        observed = pace.observed + 1
        kept = np.flatnonzero(pace.reported_in > observed - 2 * self.w)
        values = np.concatenate([pace.losses_per_s[kept], losses_per_s])
        rounds = np.concatenate([pace.reported_in[kept], np.full(len(losses_per_s), observed, dtype=np.int64)])
        ltr, ddlr = pace.loss_threshold_ratio, pace.deadline_ratio
        if observed % self.w == 0 and observed >= 2 * self.w:
            before = rounds <= observed - self.w
            share = self._step_share(float(np.median(values[before])), float(np.median(values[~before])))
            ltr, ddlr = clip_ratio(ltr + share * self.lss), clip_ratio(ddlr - share * self.dss)
        return MedianState(ltr, ddlr, values, rounds, observed, float(np.median(losses_per_s)))

    def _step_share(self, past: float, recent: float) -> float:
        """Return the share of a full step, from -1 to 1."""
        if past == 0:
            return float(np.sign(-recent))
        return min(max((past - recent) / (self.full * abs(past)), -1.0), 1.0)


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
