"""Client selection in which nobody takes part too often, whatever it says of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, Private
from fedbalancer.core.fields import AtLeastOne, Weight
from fedbalancer.core.types import FloatArray, IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.clients.counted import Counted, CountedState
from fedbalancer.server.loss_increase_ratio import loss_increase_ratio

SPARE = 2
"""Clients to choose from, in K, below which the cap is lifted for those that were chosen least."""


@dataclass(frozen=True)
class CappedParticipation(Counted):
    """Ours, for `+robust`: another policy chooses, but a client is offered to it only while it was chosen less than
    1 + `times` x its fair share of the rounds so far (K of N clients: K / N), whether it reported or not; and no client
    counts with losses over `most_times` the median client's. For a client whose loss is higher than when it first came,
    `times` is less by the ratio of the two to the power of `worse_power` (0: no less).

    A liar about its losses is then one of many of high loss, and gets `times` its fair share at most.
    """

    own_reactions: ClassVar[frozenset[Private]] = LOSSES

    times: AtLeastOne = 1.5
    most_times: AtLeastOne = 3.0
    worse_power: Weight = 4.0

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountedState = state.clients
        seen = replace(state, clients=own.inner, ledger=tempered(state.ledger, self.most_times))
        return self.inner.select_clients(setup, seen, self._offered(setup, state, available))

    def _offered(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        fair = setup.clients_per_round / max(len(state.ledger.clients), 1)
        chosen = state.clients.counts(state.ledger)[available]
        worse = loss_increase_ratio(state.ledger.loss_first[available], state.ledger.loss_mean[available])
        free = chosen < 1 + self.times * worse**-self.worse_power * fair * state.round
        least = min(math.ceil(SPARE * setup.clients_per_round), len(available))
        if free.sum() < least:
            free[np.argsort(chosen, kind="stable")[:least]] = True
        return available[np.flatnonzero(free)]


def tempered(ledger: Ledger, most_times: float) -> Ledger:
    """The ledger without losses that are far over those of the median client: root mean square and mean are cut."""
    known = np.flatnonzero(ledger.over_count > 0)
    if not len(known):
        return ledger
    squares = np.maximum(ledger.over_sumsq[known], 0) / ledger.over_count[known]
    over_sumsq, limit = ledger.over_sumsq.copy(), most_times**2 * float(np.median(squares))
    over_sumsq[known] = np.minimum(over_sumsq[known], limit * ledger.over_count[known])
    return replace(ledger, over_sumsq=over_sumsq, loss_mean=_cut(ledger.loss_mean, most_times))


def _cut(losses: FloatArray, most_times: float) -> FloatArray:
    heard = losses[~np.isnan(losses)]
    return np.minimum(losses, most_times * float(np.median(heard))) if len(heard) else losses
