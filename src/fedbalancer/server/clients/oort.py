"""Oort: guided participant selection (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021), as published by its authors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.fields import Bounds, Rounds, Share, UpTo100
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.server.clients import pacer, selection
from fedbalancer.server.clients.draws import draw_weighted
from fedbalancer.server.expected import expected_first_s


@dataclass(frozen=True)
class OortState:
    """State of `Oort`.

    Args:
        exploration: Share of the cohort that explores.
        percentile: Percentile of expected durations that the pacer has reached.
        preferred_s: Preferred duration T, the value of that percentile.
        utilities: Utilities of the rounds that the pacer compares next.
    """

    exploration: float
    percentile: float
    preferred_s: float
    utilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Oort(ClientSelector):
    """Oort: invites int(`overcommit` K) clients, of which the first K reports count (`FirstReports`).

    Score of a client that has reported: the statistical utility |B| sqrt(mean squared loss) of its last training,
    clipped at the `clip` quantile and scaled to [0, 1], plus sqrt(0.1 ln R / last round), times (T / t)^`alpha` if its
    expected duration t exceeds T. A share 1 - exploration of the cohort is drawn in proportion to score among clients
    with at least `cutoff` times the score of that rank. The rest have never reported and are drawn in proportion to
    their speed 1 / t.

    Pacer: T is a percentile of all clients' expected durations, `pacer_start` at first. After every `pacer_window`
    rounds with reports, their total utility is compared with that of the window before. If it fell, the percentile
    grows by `pacer_delta` and T is computed again; from 100 on, T is infinite.

    Differences from the paper: percentiles and one comparison per window come from the released code. The paper adds a
    number of seconds that covers the next W K clients and, read literally, does so in every round. Durations t are
    computed from mean network speed and mean batch latency instead of the last measured value. A shortage of known or
    unknown clients is filled from the other side. Blacklisted clients are invited if no others are left. The blacklist
    is off, as in the released code; the paper's limit of 10 excludes every client of a small task.

    Constants are the paper's (section 7.1), except `pacer_start`, `pacer_delta` and `blacklist_share`, which are the
    released code's. That code also differs from the paper: cut-off 0.7, 1.1 K invited, T relaxed if utility stays flat,
    and exploration by size as well.

    Args:
        alpha: Exponent of the duration penalty.
        exploration: Initial share of the cohort that explores.
        exploration_decay: Factor of that share per round.
        exploration_min: Share at which the decay stops.
        clip: Quantile at which utilities are clipped.
        cutoff: Smallest score to exploit, as a share of the score of the last rank.
        overcommit: Invited clients, as a multiple of K.
        pacer_window: Rounds per window of the pacer.
        pacer_start: Initial percentile of expected durations.
        pacer_delta: Increase of the percentile.
        blacklist: Number of reports after which a client is no longer exploited.
        blacklist_share: Largest share of all clients on the blacklist, those with the most reports first.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("oort").clients == Oort()
        True
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    alpha: UpTo100 = 2.0
    exploration: Share = 0.9
    exploration_decay: Share = 0.98
    exploration_min: Share = 0.2
    clip: Share = 0.95
    cutoff: Share = 0.95
    overcommit: Annotated[float, Bounds(ge=1, le=100)] = 1.3
    pacer_window: Rounds = 20
    pacer_start: UpTo100 = 10.0
    pacer_delta: UpTo100 = 5.0
    blacklist: Annotated[float, Bounds(ge=1)] = math.inf
    blacklist_share: float = 0.3

    def init(self, setup: Setup) -> OortState:
        return OortState(
            self.exploration, self.pacer_start, pacer.duration_percentile_s(setup, setup.ledger, self.pacer_start)
        )

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> OortState:
        own: OortState = state.clients
        decay, least = self.exploration_decay, self.exploration_min
        own = replace(own, exploration=selection.next_exploration(own.exploration, decay, least, state.ledger))
        if not result.reports:  # without reports there is no utility
            return own
        utilities, fell = pacer.compare_windows(
            (*own.utilities, pacer.total_utility(result.reports)), self.pacer_window
        )
        if not fell:
            return replace(own, utilities=utilities)
        percentile = own.percentile + self.pacer_delta
        return OortState(
            own.exploration, percentile, pacer.duration_percentile_s(setup, state.ledger, percentile), utilities
        )

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        # 1e-9 guards against 1.3 * 10 = 12.9999...
        count = min(int(self.overcommit * setup.clients_per_round + 1e-9), len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        known, unknown = selection.split_explored(state.ledger, available)
        known, last_resort = self._split_blacklisted(state.ledger, known)
        exploit = selection.exploit_count(count, state.clients.exploration, len(known), len(unknown))
        explore = min(count - exploit, len(unknown))
        best = selection.exploit(
            self._base_scores(state, known), self._penalty(setup, state, known), exploit, self.cutoff, rng
        )
        speeds = 1 / expected_first_s(setup, state.ledger, unknown)
        fast = draw_weighted(speeds, explore, rng)
        others = rng.choice(last_resort, count - exploit - explore, replace=False)
        return np.sort(np.concatenate([known[best], unknown[fast], others]))

    def scores(self, setup: Setup, state: ServerState, known: IndexArray) -> FloatArray:
        """Return the scores of clients that have reported at least once.

        Args:
            setup: Constants of the run.
            state: The server's state.
            known: Ledger rows of these clients.

        Returns:
            One score per client.
        """
        return self._base_scores(state, known) * self._penalty(setup, state, known)(np.arange(len(known)))

    def _base_scores(self, state: ServerState, known: IndexArray) -> FloatArray:
        ledger = state.ledger
        trained = ledger.recent_trained[known, -1]
        utility = pacer.statistical_utility(trained, ledger.over_count[known], ledger.over_sumsq[known])
        return selection.base_scores(utility, ledger.last_round[known], state.round + 1, self.clip)

    def _split_blacklisted(self, ledger: Ledger, known: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Split the known clients into those that may be exploited and those on the blacklist."""
        often = np.flatnonzero(ledger.participations > self.blacklist)
        most = int(self.blacklist_share * len(ledger.clients))
        listed = often[np.argsort(-ledger.participations[often], kind="stable")[:most]]
        if not len(listed):
            return known, listed
        banned = np.isin(known, listed)
        return known[~banned], known[banned]

    def _penalty(self, setup: Setup, state: ServerState, known: IndexArray) -> selection.Penalty:
        return selection.duration_penalty(setup, state.ledger, known, state.clients.preferred_s, self.alpha)
