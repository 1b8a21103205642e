"""Selectors that wrap another one and bound how often clients are selected."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, ClientSelector, Private
from fedbalancer.core.fields import AtLeastOne, Bounds, Count, Seconds, Share
from fedbalancer.core.types import (
    UNDER_WAY,
    CountArray,
    FloatArray,
    IndexArray,
    Ledger,
    RoundResult,
    ServerState,
    Setup,
)
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.clients.over_threshold import OverThresholdUtility


@dataclass(frozen=True, eq=False)
class CountingState:
    """State of a `CountingSelector`.

    Args:
        inner: State of the wrapped policy.
        selected: How many times each client was selected; empty before the first round.
    """

    inner: Any
    selected: CountArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def counts(self, ledger: Ledger) -> CountArray:
        """Return the number of selections per ledger row. Clients that joined later are at the end of the ledger."""
        return np.concatenate([self.selected, np.zeros(len(ledger.clients) - len(self.selected), dtype=np.int32)])


@dataclass(frozen=True)
class CountingSelector(Wrapping, ClientSelector):
    """Base of selectors that wrap another one and use how often each client was selected, with or without a report.

    Args:
        inner: The wrapped selector.
    """

    inner: ClientSelector = field(default_factory=OverThresholdUtility)

    def init(self, setup: Setup) -> CountingState:
        return CountingState(self.inner.init(setup))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> CountingState:
        own: CountingState = state.clients
        inner = self.inner.observe(setup, self.unwrapped(state), result)
        selected = own.counts(state.ledger).copy()
        selected[state.ledger.rows(result.plan.cohort)] += 1
        return CountingState(inner, selected)


MIN_CHOICE = 2
"""Minimum number of eligible clients, in multiples of K. Below it, the least selected clients become eligible."""


@dataclass(frozen=True)
class CappedParticipation(CountingSelector):
    """Ours, used by `+robust`: limits how often a client takes part and how much its losses count.

    The wrapped selector chooses among clients that were selected fewer than 1 + `times` x fair share x rounds times.
    The fair share is K / N for K of N clients; a selection counts whether or not the client reported. Losses count with
    at most `most_times` the median client's. A malicious client that claims high losses therefore gets at most `times`
    its fair share.

    Args:
        inner: The wrapped selector.
        times: Largest participation, as a multiple of the fair share.
        most_times: Largest loss, as a multiple of the median client's.
        refused_share: A client whose last n updates were refused (`CheckedUpdates`) keeps this share of `times` to the
            power of n.

    Example:
        >>> import fedbalancer as fb
        >>> selector = fb.method("canter+robust").clients
        >>> selector
        CappedParticipation(inner=ByLoss(), times=1.2, most_times=3.0, refused_share=0.5)
    """

    own_reactions: ClassVar[frozenset[Private]] = LOSSES

    times: AtLeastOne = 1.2
    most_times: AtLeastOne = 3.0
    refused_share: Share = 0.5

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountingState = state.clients
        seen = replace(state, clients=own.inner, ledger=limit_losses(state.ledger, self.most_times))
        return self.inner.select_clients(setup, seen, self._eligible(setup, state, available))

    def _eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the clients that the wrapped selector may choose from."""
        fair = setup.clients_per_round / max(len(state.ledger.clients), 1)
        selected = state.clients.counts(state.ledger)[available]
        refused = count_refusals(state, available)
        free = selected < (refused == 0) + self.times * self.refused_share**refused * fair * state.round
        least = min(math.ceil(MIN_CHOICE * setup.clients_per_round), len(available))
        if free.sum() < least:
            free[np.argsort(selected, kind="stable")[:least]] = True
        return available[np.flatnonzero(free)]


DAY_S = 86_400.0
Megabytes = Annotated[float, Bounds(ge=0, le=10**6)]


@dataclass(frozen=True, eq=False)
class BudgetState:
    """State of `DailyBudget`: what every client has used on the current day.

    Args:
        inner: State of the wrapped policy.
        day: Number of the day on the run's clock.
        rounds: Rounds for which each client was selected.
        seconds: Seconds that each client worked.
        traffic: Bytes of each client, in both directions.
        releases: Reports that each client may have released.
    """

    inner: Any
    day: int = 0
    rounds: FloatArray = field(default_factory=lambda: np.zeros(0))
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    traffic: FloatArray = field(default_factory=lambda: np.zeros(0))
    releases: FloatArray = field(default_factory=lambda: np.zeros(0))


USED = ("rounds", "seconds", "traffic", "releases")
QUIET = ("unavailable", "declined")
"""Reasons of clients that have released nothing."""


@dataclass(frozen=True)
class DailyBudget(Wrapping, ClientSelector):
    """Ours: a client that has used one of its budgets of the day is not selected until the next day.

    A day has 24 hours on the run's clock and starts with the run. A client may exceed a budget by its last round. To
    bound epsilon per day, bound the releases: `fedbalancer privacy plan` computes epsilon for a number of them.

    Args:
        inner: The wrapped selector.
        rounds: Rounds per day. None: no limit.
        seconds: Seconds of work per day. None: no limit.
        megabytes: Traffic per day in both directions, in megabytes of 10^6 bytes. None: no limit.
        releases: Reports per day. None: no limit.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer[clients=DailyBudget(rounds=24, megabytes=50)]").clients.rounds
        24
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    inner: ClientSelector = field(default_factory=OverThresholdUtility)
    rounds: Count | None = None
    seconds: Seconds | None = None
    megabytes: Megabytes | None = None
    releases: Count | None = None

    def init(self, setup: Setup) -> BudgetState:
        return BudgetState(self.inner.init(setup))

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        return self.inner.select_clients(setup, self.unwrapped(state), available)

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the available clients with budget left today."""
        rows = self.inner.eligible(setup, self.unwrapped(state), available)
        own: BudgetState = state.clients
        traffic = None if self.megabytes is None else 1e6 * self.megabytes
        budgets = dict(zip(USED, (self.rounds, self.seconds, traffic, self.releases), strict=True))
        limits = {name: limit for name, limit in budgets.items() if limit is not None}
        if not limits or own.day != state.clock_s // DAY_S:
            return rows
        left = np.ones(len(rows), dtype=bool)
        for name, limit in limits.items():
            left &= _extend(getattr(own, name), state.ledger)[rows] < limit
        return rows[left]

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> BudgetState:
        own, inner = state.clients, self.inner.observe(setup, self.unwrapped(state), result)
        day, ledger = int(state.clock_s // DAY_S), state.ledger
        used = {
            name: _extend(getattr(own, name), ledger) if day == own.day else np.zeros(len(ledger.clients))
            for name in USED
        }
        cohort = result.plan.cohort
        used["rounds"][ledger.rows(cohort)] += 1
        used["traffic"][ledger.rows(cohort)] += (result.down_bytes + result.up_bytes) / max(len(cohort), 1)
        for report in result.reports:
            used["seconds"][ledger.position[report.client]] += report.timings.total_s
            used["releases"][ledger.position[report.client]] += 1
        for missing in result.missing:
            used["seconds"][ledger.position[missing.client]] += missing.timings.total_s
            used["releases"][ledger.position[missing.client]] += missing.why not in (*QUIET, UNDER_WAY)
        return BudgetState(inner, day, **used)


def _extend(used: FloatArray, ledger: Ledger) -> FloatArray:
    """Return a copy with a row for clients that joined later."""
    return np.concatenate([used, np.zeros(len(ledger.clients) - len(used))])


def count_refusals(state: ServerState, rows: IndexArray) -> CountArray:
    """Return how many times in a row the aggregator refused each client's update; 0 if it does not check updates.

    Args:
        state: The server's state.
        rows: Ledger rows.
    """
    own: Any = state.aggregate
    while own is not None and not hasattr(own, "refusals"):
        own = getattr(own, "inner", None)
    refusals = {} if own is None else own.refusals
    return np.array([refusals.get(state.ledger.clients[row], 0) for row in rows.tolist()], dtype=np.int32)


def limit_losses(ledger: Ledger, most_times: float) -> Ledger:
    """Return the ledger with losses limited to a multiple of the median client's.

    Args:
        ledger: The server's ledger.
        most_times: Largest root mean square and mean loss, as a multiple of the median.

    Returns:
        A new ledger.
    """
    known = np.flatnonzero(ledger.over_count > 0)
    if not len(known):
        return ledger
    squares = np.maximum(ledger.over_sumsq[known], 0) / ledger.over_count[known]
    over_sumsq, limit = ledger.over_sumsq.copy(), most_times**2 * float(np.median(squares))
    over_sumsq[known] = np.minimum(over_sumsq[known], limit * ledger.over_count[known])
    return replace(ledger, over_sumsq=over_sumsq, loss_mean=_limit_means(ledger.loss_mean, most_times))


def _limit_means(losses: FloatArray, most_times: float) -> FloatArray:
    heard = losses[~np.isnan(losses)]
    return np.minimum(losses, most_times * float(np.median(heard))) if len(heard) else losses


@dataclass(frozen=True)
class GroupFloor(CountingSelector):
    """Ours: guarantees every speed group a minimum share of all selections.

    Each group gets at least `floor` times its proportional share over all rounds. The wrapped selector chooses within
    the groups and fills the remaining places. Groups have equal size and are formed by seconds per batch, because
    selection by speed would otherwise exclude slow phones and their users. A group without available clients catches up
    later.

    Args:
        inner: The wrapped selector.
        floor: Guaranteed share of a group's proportional participation, from 0 to 1.
        groups: Number of groups.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+groupfloor").clients
        GroupFloor(inner=Uniform(), floor=0.5, groups=4)
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    floor: Share = 0.5
    groups: Count = 4

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountingState = state.clients
        group_of = speed_groups(state.ledger, self.groups)
        counts = np.bincount(group_of, weights=own.counts(state.ledger), minlength=self.groups)
        fair = np.bincount(group_of, minlength=self.groups) / max(len(group_of), 1)
        places = min(setup.clients_per_round, len(available))
        shortfall = self.floor * fair * setup.clients_per_round * (state.round + 1) - counts
        seen, selected = self.unwrapped(state), np.zeros(0, dtype=np.int64)
        for group in np.argsort(-shortfall, kind="stable").tolist():
            left, members = places - len(selected), available[group_of[available] == group]
            count = min(math.ceil(shortfall[group]), left, len(members))
            if count > 0:
                picked = self.inner.select_clients(replace(setup, clients_per_round=count), seen, members)
                selected = np.concatenate([selected, picked])
        if len(selected) < places:
            others, left = np.setdiff1d(available, selected), places - len(selected)
            rest = self.inner.select_clients(replace(setup, clients_per_round=left), seen, others)
            selected = np.concatenate([selected, rest])
        return np.sort(selected)


def speed_groups(ledger: Ledger, groups: int) -> IndexArray:
    """Return the speed group of every client. Groups are of nearly equal size; group 0 is the fastest.

    Args:
        ledger: The server's ledger.
        groups: Number of groups.

    Returns:
        One group number per ledger row.
    """
    place = np.empty(len(ledger.clients), dtype=np.int64)
    place[np.argsort(ledger.batch_s, kind="stable")] = np.arange(len(place))
    return place * groups // max(len(place), 1)
