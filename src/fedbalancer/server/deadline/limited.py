"""A deadline that a few liars cannot cut short or put off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.protocols import DeadlinePolicy
from fedbalancer.server.deadline.peak import PeakDeadline
from fedbalancer.server.expected import completion_s
from fedbalancer.types import (
    FORWARD_PASS_EPOCHS,
    RECENT_COUNTS,
    FloatArray,
    IndexArray,
    Ledger,
    RoundResult,
    ServerState,
    Setup,
    Timings,
    batches_per_epoch,
)

LEAST_SHARE = 0.1
"""Lower bound of a measured epoch relative to the last estimate: a lucky network must not make an epoch free."""
UNUSED_SHARE = 0.2
"""Share of the deadline that a client may leave unused if it can stop within an epoch: its last batch or upload."""
TIMED_OUT = ("download", "forward", "train", "upload")
"""Phases in which the deadline passed, in `Missing.why`."""


@dataclass(frozen=True, eq=False)
class LimitedState:
    """State of the inner policy, the last deadline (None before the first), and the server's estimate of the seconds
    that one epoch takes each client (NaN before its first report)."""

    inner: Any
    last_s: float | None = None
    epoch_s: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class LimitedDeadline:
    """Ours, for `+robust`: limits the deadline of another policy and feeds that policy measured times.

    The deadline is long enough for a share `floor` of the cohort to finish one epoch, and changes by at most the factor
    `rate` from one round to the next.

    The inner policy sees the seconds per epoch that the server measures, and nothing that a client claims of its
    batches, samples or epochs: how long the report took to arrive, without the expected transfer, divided by the epochs
    that the order's deadline allows at the speed estimated so far. A client that misses a deadline takes at least as
    long for an epoch. The batch latencies from before its first report are where the estimate starts.
    """

    inner: DeadlinePolicy = field(default_factory=PeakDeadline)
    floor: float = 0.8
    rate: float = 1.5

    def __post_init__(self) -> None:
        if not (0 <= self.floor <= 1 <= self.rate):
            raise ValueError(f"floor = {self.floor} must be from 0 to 1, and rate = {self.rate} at least 1")

    @property
    def needs_losses(self) -> bool:
        return bool(getattr(self.inner, "needs_losses", False))

    def refuses(self, method: Any) -> str | None:
        """What the other policy says."""
        refuses = getattr(self.inner, "refuses", None)
        return None if refuses is None else refuses(method)

    def init(self, setup: Setup) -> LimitedState:
        return LimitedState(self.inner.init(setup))

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own: LimitedState = state.deadline
        seen = replace(state, deadline=own.inner, ledger=_measured(setup, state.ledger, own.epoch_s))
        wanted_s, quorum = self.inner.plan(setup, seen, cohort)
        if not np.isfinite(wanted_s) or not len(cohort):
            return wanted_s, quorum
        wanted_s = max(wanted_s, self._floor_s(setup, seen, cohort))
        if own.last_s is not None:
            wanted_s = min(max(wanted_s, own.last_s / self.rate), own.last_s * self.rate)
        return float(wanted_s), quorum

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """dl and dh of the other policy, if it has them."""
        between = getattr(self.inner, "between", None)
        own: LimitedState = state.deadline
        seen = replace(state, deadline=own.inner, ledger=_measured(setup, state.ledger, own.epoch_s))
        return None if between is None else between(setup, seen, cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LimitedState:
        own: LimitedState = state.deadline
        inner = self.inner.observe(setup, replace(state, deadline=own.inner), result)
        deadline_s = result.plan.order.deadline_s
        known = bool(result.plan.cohort) and bool(np.isfinite(deadline_s))
        epoch_s = _updated(setup, state.ledger, own.epoch_s, result)
        return LimitedState(inner, deadline_s if known else own.last_s, epoch_s)

    def _floor_s(self, setup: Setup, state: ServerState, cohort: IndexArray) -> float:
        """When the share is expected to be done with one epoch of what it trained lately."""
        trained = state.ledger.recent_trained[cohort].mean(axis=1)
        per_epoch = batches_per_epoch(trained, setup.batch_size, setup.epoch_batches)
        expected_s = np.sort(completion_s(setup, state.ledger, per_epoch, 1, cohort))
        return float(expected_s[max(int(np.ceil(self.floor * len(expected_s))) - 1, 0)])


def _measured(setup: Setup, ledger: Ledger, epoch_s: FloatArray) -> Ledger:
    """The ledger with measured times in place of claims: every client trains all its samples, and its batches take as
    long as its measured epochs say."""
    known_s, count = _padded(epoch_s, ledger), len(ledger.clients)
    batches = batches_per_epoch(ledger.size, setup.batch_size, setup.epoch_batches)
    return replace(
        ledger,
        batch_s_sum=np.where(np.isnan(known_s), ledger.batch_s, known_s / batches),
        batch_s_count=np.broadcast_to(np.int32(1), count),
        recent_trained=np.broadcast_to(ledger.size.astype(np.int32)[:, None], (count, RECENT_COUNTS)),
        over_count=np.broadcast_to(math.nan, count),
    )


def _updated(setup: Setup, ledger: Ledger, epoch_s: FloatArray, result: RoundResult) -> FloatArray:
    """The seconds per epoch after a round: a moving average over about the last `RECENT_COUNTS` rounds of a client."""
    fresh, deadline_s = _padded(epoch_s, ledger), result.plan.order.deadline_s
    told_s = {report.client: report.summary.batch_s for report in result.reports}
    seen = {report.client: report for report in result.reports}
    timed_out = [missing.client for missing in result.missing if missing.why in TIMED_OUT]
    for client in (*seen, *(timed_out if math.isfinite(deadline_s) else ())):
        row = ledger.position[client]
        network_s, before_s = float(ledger.network_s[row]), float(fresh[row])
        if math.isnan(before_s):
            before_s = _first_epoch_s(setup, ledger, row, told_s.get(client))
        if client in seen:
            measured_s = _epoch_s(setup, network_s, before_s, seen[client].timings, deadline_s)
        else:
            measured_s = max(before_s, deadline_s - network_s)
        fresh[row] = before_s + (measured_s - before_s) / RECENT_COUNTS
    return fresh


def _first_epoch_s(setup: Setup, ledger: Ledger, row: int, told_s: float | None) -> float:
    """Seconds per epoch over all samples as expected before the client's first report, which the ledger contains."""
    total_s, count = float(ledger.batch_s_sum[row]), int(ledger.batch_s_count[row])
    if told_s is not None and count > 1:
        total_s, count = max(total_s - told_s, 0.0), count - 1
    return total_s / count * batches_per_epoch(int(ledger.size[row]), setup.batch_size, setup.epoch_batches)


def _epoch_s(setup: Setup, network_s: float, before_s: float, timings: Timings, deadline_s: float) -> float:
    """Seconds per epoch as the server measured them; the last estimate where nothing was measured."""
    took_s = timings.total_s - timings.paused_s
    if took_s <= 0 or before_s <= 0:
        return before_s
    forward = FORWARD_PASS_EPOCHS if setup.looks_every_round else 0.0
    allowed_s = max(math.ceil(took_s / deadline_s), 1) * deadline_s if 0 < deadline_s < math.inf else math.inf
    worked_s, allowed_s = took_s - network_s, allowed_s - network_s
    epochs = min(max(allowed_s / before_s - forward, LEAST_SHARE), float(setup.epochs))
    if not setup.stops_in_epoch:
        epochs = max(math.floor(epochs), 1)
    elif epochs < setup.epochs:
        worked_s = min(worked_s / (1 - UNUSED_SHARE), allowed_s)
    return max(worked_s / (epochs + forward), LEAST_SHARE * before_s)


def _padded(epoch_s: FloatArray, ledger: Ledger) -> FloatArray:
    """A copy with NaN for clients that joined since."""
    return np.concatenate([epoch_s, np.full(len(ledger.clients) - len(epoch_s), math.nan)])
