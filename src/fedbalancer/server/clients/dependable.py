"""FLUDE's selection of clients that complete their rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.fields import Share, Step, UpTo100
from fedbalancer.core.randomness import pick_smallest, stream
from fedbalancer.core.types import UNDER_WAY, FloatArray, IndexArray, Ledger, RoundResult, ServerState, Setup

UNKNOWN = (UNDER_WAY, "late")
"""Reasons of clients that have neither completed their round nor failed."""


@dataclass(frozen=True, eq=False)
class Completions:
    """State of `Dependable`: how the rounds of every client ended, by ledger row.

    Args:
        completed: Rounds with a report.
        failed: Rounds without one.
    """

    completed: FloatArray = field(default_factory=lambda: np.zeros(0))
    failed: FloatArray = field(default_factory=lambda: np.zeros(0))

    def padded(self, ledger: Ledger) -> Completions:
        """Return a copy with rows for clients that joined later."""
        missing = np.zeros(len(ledger.clients) - len(self.completed))
        return Completions(np.concatenate([self.completed, missing]), np.concatenate([self.failed, missing]))


@dataclass(frozen=True)
class Dependable(ClientSelector):
    """FLUDE: selects clients that are likely to complete their round.

    The probability that a client completes a round has a Beta distribution, which starts as Beta(`prior`, `prior`) and
    counts every completed and every failed round. Its mean is the client's dependability R. A share `exploration` of
    the places goes to clients that were never selected, at random. The others go to the highest priority: R, times
    (m / n)^`balance` for a client that was selected n times, more than the average of m (Wang et al., "A Robust
    Federated Learning Framework for Undependable Devices at Scale", arXiv 2412.19991).

    The paper's equations were not available to us. The Beta distribution is the paper's; the prior, exploration and
    balance are ours.

    Args:
        prior: Both parameters of the Beta distribution before the first round.
        exploration: Share of the places for clients that were never selected.
        balance: Strength of the discount for clients that are selected more often than the average. 0: none.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("flude").clients
        Dependable(prior=1.0, exploration=0.2, balance=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    prior: Step = 1.0
    exploration: Share = 0.2
    balance: UpTo100 = 0.5

    def init(self, setup: Setup) -> Completions:
        return Completions().padded(setup.ledger)

    def dependability(self, own: Completions) -> FloatArray:
        """Return the mean of every client's Beta distribution.

        Args:
            own: How the clients' rounds ended.

        Example:
            >>> Dependable().dependability(Completions(np.array([0.0, 3.0]), np.array([0.0, 1.0])))
            array([0.5       , 0.66666667])
        """
        mean: FloatArray = (self.prior + own.completed) / (2 * self.prior + own.completed + own.failed)
        return mean

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: Completions = state.clients.padded(state.ledger)
        rng = stream(setup.seed, "clients", state.round + 1)
        count = min(setup.clients_per_round, len(available))
        selected = own.completed + own.failed
        new, known = (available[mask] for mask in (selected[available] == 0, selected[available] > 0))
        explored = min(max(int(self.exploration * count + 1e-9), count - len(known)), len(new))
        chosen = rng.choice(new, size=explored, replace=False)
        mean = max(float(selected.mean()), 1e-12)
        priority = self.dependability(own)[known] * np.minimum(mean / selected[known], 1.0) ** self.balance
        best = known[pick_smallest(-priority, count - explored, rng)]
        return np.sort(np.concatenate([chosen, best]).astype(np.int64))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Completions:
        own: Completions = state.clients.padded(state.ledger)
        own.completed[state.ledger.rows(tuple(report.client for report in result.reports))] += 1
        failed = tuple(missing.client for missing in result.missing if missing.why not in UNKNOWN)
        own.failed[state.ledger.rows(failed)] += 1
        return own
