"""Oort: guided participant selection (Lai, Zhu, Madhyastha, Chowdhury; OSDI'21), as its authors publish it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.server.clients import pacer, selection
from fedbalancer.server.clients.draws import in_proportion
from fedbalancer.server.expected import expected_first_s


@dataclass(frozen=True)
class OortState:
    """The share of the cohort that explores; the percentile that the pacer has reached, the preferred duration T there,
    and the utility of every round that its next look will compare."""

    exploration: float
    percentile: float
    preferred_s: float
    utilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Oort(ClientSelector):
    """int(`overcommit` K) clients are invited, of whom the first K reports count (`FirstReports`).

    Score of a client heard before: statistical utility |B| sqrt(mean squared loss) of what it trained last, clipped at
    the `clip` quantile and scaled to [0, 1], plus sqrt(0.1 ln R / last round), times (T / t)^`alpha` where its expected
    duration t exceeds T. A share 1 - exploration is drawn in proportion to score among those of at least `cutoff` times
    the score of that rank; the rest are clients never heard of, in proportion to their speed 1 / t.

    Pacer: T is the `pacer_start` percentile of all clients' expected durations. Whenever `pacer_window` more rounds
    have had reports, their summed utility is compared with that of the window before; if it fell, the percentile grows
    by `pacer_delta` and T is read anew, unbounded from 100 on. The paper adds a step in seconds that covers the next
    W K clients and, read literally, does so in every round; percentile and one look a window are the released code's.

    Blacklist: whoever has reported more than `blacklist` times is exploited no longer, at most `blacklist_share` of all
    clients, those heard most. Off as in the released code; the paper has 10, which takes everybody in a small task.

    Constants are the paper's (section 7.1); percentile, delta and blacklist share are the released code's. That code
    differs from the paper in more: it cuts off at .7, invites 1.1 K, relaxes T where utility stays flat, and explores
    by size too.
    Departures: t is expected from mean network speed and mean batch latency, not the last one measured; a shortage of
    known or unknown clients is filled from the other side; blacklisted ones are invited where nobody else is left.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    alpha: float = 2.0
    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.2
    clip: float = 0.95
    cutoff: float = 0.95
    overcommit: float = 1.3
    pacer_window: int = 20
    pacer_start: float = 10.0
    pacer_delta: float = 5.0
    blacklist: float = math.inf
    blacklist_share: float = 0.3

    def init(self, setup: Setup) -> OortState:
        return OortState(self.exploration, self.pacer_start, pacer.duration_s(setup, setup.ledger, self.pacer_start))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> OortState:
        own: OortState = state.clients
        decay, least = self.exploration_decay, self.exploration_min
        own = replace(own, exploration=selection.next_exploration(own.exploration, decay, least, state.ledger))
        if not result.reports:  # nothing was heard, so nothing fell
            return own
        utilities, fell = pacer.look((*own.utilities, pacer.achieved(result.reports)), self.pacer_window)
        if not fell:
            return replace(own, utilities=utilities)
        percentile = own.percentile + self.pacer_delta
        return OortState(own.exploration, percentile, pacer.duration_s(setup, state.ledger, percentile), utilities)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        # The guard against 1.3 * 10 = 12.9999... is smaller than any share of a client.
        count = min(int(self.overcommit * setup.clients_per_round + 1e-9), len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        known, unknown = selection.known_or_not(state.ledger, available)
        known, last_resort = self._unlisted(state.ledger, known)
        exploit = selection.exploited(count, state.clients.exploration, len(known), len(unknown))
        explore = min(count - exploit, len(unknown))
        best = selection.exploit(
            self._base(state, known), self._penalty(setup, state, known), exploit, self.cutoff, rng
        )
        speeds = 1 / expected_first_s(setup, state.ledger, unknown)
        fast = in_proportion(speeds, explore, rng)
        others = rng.choice(last_resort, count - exploit - explore, replace=False)
        return np.sort(np.concatenate([known[best], unknown[fast], others]))

    def scores(self, setup: Setup, state: ServerState, known: IndexArray) -> FloatArray:
        """The score of clients heard at least once."""
        return self._base(state, known) * self._penalty(setup, state, known)(np.arange(len(known)))

    def _base(self, state: ServerState, known: IndexArray) -> FloatArray:
        ledger = state.ledger
        trained = ledger.recent_trained[known, -1]
        utility = pacer.statistical_utility(trained, ledger.over_count[known], ledger.over_sumsq[known])
        return selection.base_scores(utility, ledger.last_round[known], state.round + 1, self.clip)

    def _unlisted(self, ledger: Ledger, known: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Those of the known clients that may be exploited, and those on the blacklist."""
        often = np.flatnonzero(ledger.participations > self.blacklist)
        most = int(self.blacklist_share * len(ledger.clients))
        listed = often[np.argsort(-ledger.participations[often], kind="stable")[:most]]
        if not len(listed):
            return known, listed
        banned = np.isin(known, listed)
        return known[~banned], known[banned]

    def _penalty(self, setup: Setup, state: ServerState, known: IndexArray) -> selection.Penalty:
        return selection.duration_penalty(setup, state.ledger, known, state.clients.preferred_s, self.alpha)
