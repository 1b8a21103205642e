"""A deadline that a few liars cannot cut short or put off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.protocols import DeadlinePolicy
from fedbalancer.server.deadline.peak import PeakDeadline
from fedbalancer.server.expected import completion_s
from fedbalancer.types import IndexArray, RoundResult, ServerState, Setup, batches_per_epoch


@dataclass(frozen=True, eq=False)
class LimitedState:
    """What the other policy remembers, and the last deadline (None before the first)."""

    inner: Any
    last_s: float | None = None


@dataclass(frozen=True)
class LimitedDeadline:
    """Ours, for `+robust`: the deadline of another policy, but never so short that less than a share `floor` of the
    cohort is expected to be done with one epoch, and at most `rate` longer or shorter, as a factor, than the last one.

    Clients that say they are fast cannot take the others' time, and what clients that say they are slow may win comes
    round by round, where the server sees for itself that they are not.
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
        wanted_s, quorum = self.inner.plan(setup, replace(state, deadline=own.inner), cohort)
        if not np.isfinite(wanted_s) or not len(cohort):
            return wanted_s, quorum
        wanted_s = max(wanted_s, self._floor_s(setup, state, cohort))
        if own.last_s is not None:
            wanted_s = min(max(wanted_s, own.last_s / self.rate), own.last_s * self.rate)
        return float(wanted_s), quorum

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """dl and dh of the other policy, if it has them."""
        between = getattr(self.inner, "between", None)
        return None if between is None else between(setup, replace(state, deadline=state.deadline.inner), cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LimitedState:
        own: LimitedState = state.deadline
        inner = self.inner.observe(setup, replace(state, deadline=own.inner), result)
        deadline_s = result.plan.order.deadline_s
        known = bool(result.plan.cohort) and bool(np.isfinite(deadline_s))
        return LimitedState(inner, deadline_s if known else own.last_s)

    def _floor_s(self, setup: Setup, state: ServerState, cohort: IndexArray) -> float:
        """When the share is expected to be done with one epoch of what it trained lately."""
        trained = state.ledger.recent_trained[cohort].mean(axis=1)
        per_epoch = batches_per_epoch(trained, setup.batch_size, setup.epoch_batches)
        expected_s = np.sort(completion_s(setup, state.ledger, per_epoch, 1, cohort))
        return float(expected_s[max(int(np.ceil(self.floor * len(expected_s))) - 1, 0)])
