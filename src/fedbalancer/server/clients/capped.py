"""Client selection with limited participation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, Private
from fedbalancer.core.fields import AtLeastOne, Weight
from fedbalancer.core.types import FloatArray, IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.clients.counted import CountingSelector, CountingState
from fedbalancer.server.loss_increase_ratio import loss_increase_ratio

MIN_CHOICE = 2
"""Minimum number of eligible clients, in multiples of K. Below it, the least selected clients become eligible."""


@dataclass(frozen=True)
class CappedParticipation(CountingSelector):
    """Ours, used by `+robust`: limits how often a client takes part and how high its losses count.

    The wrapped selector chooses among clients that were selected fewer than 1 + `times` x fair share x rounds times.
    The fair share is K / N for K of N clients; a selection counts whether or not the client reported. Losses count with
    at most `most_times` the median client's. A malicious client that claims high losses therefore gets at most `times`
    its fair share.

    Args:
        inner: The wrapped selector.
        times: Largest participation, as a multiple of the fair share.
        most_times: Largest loss, as a multiple of the median client's.
        worse_power: A client whose loss grew by the factor r since its first report has `times` divided by
            r^worse_power. 0: no reduction.

    Example:
        >>> import fedbalancer as fb
        >>> selector = fb.method("canter+robust").clients
        >>> selector
        CappedParticipation(inner=ByLoss(), times=1.5, most_times=3.0, worse_power=4.0)
    """

    own_reactions: ClassVar[frozenset[Private]] = LOSSES

    times: AtLeastOne = 1.5
    most_times: AtLeastOne = 3.0
    worse_power: Weight = 4.0

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountingState = state.clients
        seen = replace(state, clients=own.inner, ledger=limit_losses(state.ledger, self.most_times))
        return self.inner.select_clients(setup, seen, self._eligible(setup, state, available))

    def _eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the clients that the wrapped selector may choose from."""
        fair = setup.clients_per_round / max(len(state.ledger.clients), 1)
        selected = state.clients.counts(state.ledger)[available]
        worse = loss_increase_ratio(state.ledger.loss_first[available], state.ledger.loss_mean[available])
        free = selected < 1 + self.times * worse**-self.worse_power * fair * state.round
        least = min(math.ceil(MIN_CHOICE * setup.clients_per_round), len(available))
        if free.sum() < least:
            free[np.argsort(selected, kind="stable")[:least]] = True
        return available[np.flatnonzero(free)]


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
