"""A deadline that a minority of malicious clients cannot shorten or extend much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import AtLeastOne, Share
from fedbalancer.core.types import (
    RECENT_COUNTS,
    FloatArray,
    IndexArray,
    Ledger,
    RoundResult,
    ServerState,
    Setup,
    Timings,
)
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.deadline.peak import PeakDeadline
from fedbalancer.server.expected import completion_s

LEAST_SHARE = 0.1
"""Lower bound of a measured epoch relative to the last estimate; a fast transfer must not make an epoch free."""
UNUSED_SHARE = 0.2
"""Share of the deadline that a client may leave unused if it can stop within an epoch: its last batch or upload."""
TIMED_OUT = ("download", "forward", "train", "upload", "silent")
"""Values of `FailedClient.why` for a passed deadline. On Flower, a client that misses it is silent."""


@dataclass(frozen=True, eq=False)
class LimitedState:
    """State of `LimitedDeadline`.

    Args:
        inner: State of the wrapped policy.
        last_s: The last deadline; None before the first.
        batch_s: Measured seconds per batch of each client, over all its samples; NaN before its first report.
    """

    inner: Any
    last_s: float | None = None
    batch_s: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class LimitedDeadline(Wrapping, DeadlinePolicy):
    """Ours, used by `+robust`: limits the deadline of another policy and gives that policy measured times.

    The deadline is long enough for a share `floor` of the cohort to finish one epoch, and changes by at most the factor
    `rate` per round.

    The wrapped policy sees only times that the server measures, not the batches, samples or epochs that clients claim.
    A client's seconds per epoch are the time until its report arrived, minus the expected transfer, divided by the
    epochs that the deadline allows at the speed estimated before. A client that misses a deadline takes at least that
    long. The estimate starts from the batch latencies known before its first report.

    Args:
        inner: The wrapped policy.
        floor: Share of the cohort that can finish one epoch.
        rate: Largest factor between consecutive deadlines.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter+robust").deadline
        LimitedDeadline(inner=UsefulWork(gamma=0.5), floor=0.8, rate=1.5)
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    inner: DeadlinePolicy = field(default_factory=PeakDeadline)
    floor: Share = 0.8
    rate: AtLeastOne = 1.5

    def init(self, setup: Setup) -> LimitedState:
        return LimitedState(self.inner.init(setup))

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own, seen = state.deadline, self.unwrapped(state)
        wanted_s, quorum = self.inner.plan(setup, seen, cohort)
        if not np.isfinite(wanted_s) or not len(cohort):
            return wanted_s, quorum
        wanted_s = max(wanted_s, self._floor_s(setup, seen, cohort))
        if own.last_s is not None:
            wanted_s = min(max(wanted_s, own.last_s / self.rate), own.last_s * self.rate)
        return float(wanted_s), quorum

    def unwrapped(self, state: ServerState) -> ServerState:
        """Return the state as the wrapped policy sees it, with measured times instead of claims."""
        return replace(super().unwrapped(state), ledger=_with_measured_times(state.ledger, state.deadline.batch_s))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LimitedState:
        own: LimitedState = state.deadline
        inner = self.inner.observe(setup, replace(state, deadline=own.inner), result)
        deadline_s = result.plan.order.deadline_s
        known = bool(result.plan.cohort) and bool(np.isfinite(deadline_s))
        batch_s = _update_batch_s(setup, state.ledger, own.batch_s, result)
        return LimitedState(inner, deadline_s if known else own.last_s, batch_s)

    def _floor_s(self, setup: Setup, state: ServerState, cohort: IndexArray) -> float:
        """Return when the share `floor` is expected to finish one epoch."""
        trained = state.ledger.recent_trained[cohort].mean(axis=1)
        per_epoch = setup.per_epoch(trained)
        expected_s = np.sort(completion_s(setup, state.ledger, per_epoch, 1, cohort))
        return float(expected_s[max(int(np.ceil(self.floor * len(expected_s))) - 1, 0)])


def _with_measured_times(ledger: Ledger, batch_s: FloatArray) -> Ledger:
    """Return the ledger with measured times, as if every client trained all its samples."""
    known_s, count = _pad(batch_s, ledger), len(ledger.clients)
    return replace(
        ledger,
        batch_s_sum=np.where(np.isnan(known_s), ledger.batch_s, known_s),
        batch_s_count=np.broadcast_to(np.int32(1), count),
        recent_trained=np.broadcast_to(ledger.size.astype(np.int32)[:, None], (count, RECENT_COUNTS)),
        over_count=np.broadcast_to(math.nan, count),
    )


def _update_batch_s(setup: Setup, ledger: Ledger, batch_s: FloatArray, result: RoundResult) -> FloatArray:
    """Return the seconds per batch after a round: a moving average over about `RECENT_COUNTS` rounds of a client."""
    fresh, deadline_s = _pad(batch_s, ledger), result.plan.order.deadline_s
    seen = {report.client: report for report in result.reports}
    timed_out = [missing.client for missing in result.missing if missing.why in TIMED_OUT]
    for client in (*seen, *(timed_out if math.isfinite(deadline_s) else ())):
        row, report = ledger.position[client], seen.get(client)
        batches = setup.per_epoch(int(ledger.size[row]))
        if math.isnan(fresh[row]):
            fresh[row] = _first_batch_s(ledger, row, None if report is None else report.summary.batch_s)
        before_s, network_s = float(fresh[row]) * batches, float(ledger.network_s[row])
        if report is None:
            measured_s = max(before_s, deadline_s - network_s)
        else:
            measured_s = _epoch_s(setup, network_s, before_s, report.timings, deadline_s)
        fresh[row] += (measured_s - before_s) / batches / RECENT_COUNTS
    return fresh


def _first_batch_s(ledger: Ledger, row: int, reported_s: float | None) -> float:
    """Return the seconds per batch expected before the client's first report, which the ledger already contains."""
    total_s, count = float(ledger.batch_s_sum[row]), int(ledger.batch_s_count[row])
    if reported_s is not None and count > 1:
        return max(total_s - reported_s, 0.0) / (count - 1)
    return total_s / count


def _epoch_s(setup: Setup, network_s: float, before_s: float, timings: Timings, deadline_s: float) -> float:
    """Return the measured seconds per epoch, or the last estimate if nothing was measured."""
    took_s = timings.total_s - timings.paused_s
    if took_s <= 0 or before_s <= 0:
        return before_s
    forward = setup.forward_epochs if setup.forward_pass_every_round else 0.0
    allowed_s = max(math.ceil(took_s / deadline_s), 1) * deadline_s if 0 < deadline_s < math.inf else math.inf
    worked_s, allowed_s = took_s - network_s, allowed_s - network_s
    epochs = min(max(allowed_s / before_s - forward, LEAST_SHARE), float(setup.epochs))
    if not setup.stops_in_epoch:
        epochs = max(math.floor(epochs), 1)
    elif epochs < setup.epochs:
        worked_s = min(worked_s / (1 - UNUSED_SHARE), allowed_s)
    return max(worked_s / (epochs + forward), LEAST_SHARE * before_s)


def _pad(batch_s: FloatArray, ledger: Ledger) -> FloatArray:
    """Return a copy with NaN for clients that joined later."""
    return np.concatenate([batch_s, np.full(len(ledger.clients) - len(batch_s), math.nan)])
