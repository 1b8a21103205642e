"""A deadline that a few liars cannot cut short or put off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.protocols import DeadlinePolicy
from fedbalancer.server.deadline.peak import PeakDeadline
from fedbalancer.server.expected import completion_s, look_batches
from fedbalancer.types import (
    ClientReport,
    FloatArray,
    IndexArray,
    Ledger,
    RoundResult,
    ServerState,
    Setup,
    batches_per_epoch,
)

LEAST_SHARE = 0.1
"""Of what a client's batches took so far: the network may take less than expected, but no batch that much less."""


@dataclass(frozen=True, eq=False)
class LimitedState:
    """What the other policy remembers; the last deadline (None before the first); and by how much the sums of batch
    latencies in the ledger, which clients told, are off from what the server measured."""

    inner: Any
    last_s: float | None = None
    off_s: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class LimitedDeadline:
    """Ours, for `+robust`: the deadline of another policy, which is given the batch latencies that the server measured
    in place of those that clients told; never so short that less than a share `floor` of the cohort is expected to be
    done with one epoch; and at most `rate` longer or shorter, as a factor, than the last one.

    What the server measures is how long a client took, less what the network is expected to take, over the batches that
    it says it made. Who says less, or more, only says that its batches were longer or shorter: its time stays the same.
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
        seen = replace(state, deadline=own.inner, ledger=_measured(state.ledger, own.off_s))
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
        seen = replace(state, deadline=own.inner, ledger=_measured(state.ledger, own.off_s))
        return None if between is None else between(setup, seen, cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LimitedState:
        own: LimitedState = state.deadline
        inner = self.inner.observe(setup, replace(state, deadline=own.inner), result)
        deadline_s = result.plan.order.deadline_s
        known = bool(result.plan.cohort) and bool(np.isfinite(deadline_s))
        return LimitedState(inner, deadline_s if known else own.last_s, _noted(setup, state.ledger, own.off_s, result))

    def _floor_s(self, setup: Setup, state: ServerState, cohort: IndexArray) -> float:
        """When the share is expected to be done with one epoch of what it trained lately."""
        trained = state.ledger.recent_trained[cohort].mean(axis=1)
        per_epoch = batches_per_epoch(trained, setup.batch_size, setup.epoch_batches)
        expected_s = np.sort(completion_s(setup, state.ledger, per_epoch, 1, cohort))
        return float(expected_s[max(int(np.ceil(self.floor * len(expected_s))) - 1, 0)])


def _measured(ledger: Ledger, off_s: FloatArray) -> Ledger:
    """The ledger with measured latencies in place of told ones."""
    return replace(ledger, batch_s_sum=np.maximum(ledger.batch_s_sum + _padded(off_s, ledger), 1e-9))


def _noted(setup: Setup, ledger: Ledger, off_s: FloatArray, result: RoundResult) -> FloatArray:
    """By how much the latencies of the ledger are off after a round; those of its reports are in it already."""
    fresh = _padded(off_s, ledger).copy()
    for report in result.reports:
        row = ledger.position[report.client]
        fresh[row] += _batch_s(setup, ledger, row, float(fresh[row]), report) - report.summary.batch_s
    return fresh


def _batch_s(setup: Setup, ledger: Ledger, row: int, off_s: float, report: ClientReport) -> float:
    """How long a batch of the report took, as the server saw it; as told where nobody measured, or where the number of
    batches is withheld."""
    took_s, told_s = report.timings.total_s - report.timings.paused_s, report.summary.batch_s
    if took_s <= 0 or report.summary.withholds_counts:
        return told_s
    batches = report.epochs * batches_per_epoch(report.summary.trained, setup.batch_size, setup.epoch_batches)
    if report.timings.forward_s > 0:
        batches += float(look_batches(setup, ledger.size[row]))
    before = max(float(ledger.batch_s_sum[row]) + off_s - told_s, 0.0) / max(int(ledger.batch_s_count[row]) - 1, 1)
    return max((took_s - float(ledger.network_s[row])) / max(batches, 1.0), LEAST_SHARE * before)


def _padded(off_s: FloatArray, ledger: Ledger) -> FloatArray:
    """With nothing for clients that joined since."""
    return np.concatenate([off_s, np.zeros(len(ledger.clients) - len(off_s))])
