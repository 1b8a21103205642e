"""REFL's client selection: who is seldom there comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import CountArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.clients.draws import smallest


@dataclass(frozen=True, eq=False)
class LeastSelectedState:
    """How often each client was selected."""

    times: CountArray


@dataclass(frozen=True)
class LeastSelected(ClientSelector):
    """K of those that were selected least often, at random among equals (Abdelmoniem et al., "REFL: Resource-Efficient
    Federated Learning", EuroSys 2023, Intelligent Participant Selection).

    The paper's clients foretell from their own history how likely they are there in the next round, and the least
    likely are taken; who was selected stays away for five rounds. Here no client foretells anything. One that is
    seldom there was selected seldom, so that it is taken when it comes; where everybody is always there, clients take
    turns, which also keeps those of the last rounds away.
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def init(self, setup: Setup) -> LeastSelectedState:
        return LeastSelectedState(np.zeros(len(setup.ledger.clients), dtype=np.int32))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LeastSelectedState:
        times = state.clients.times
        if len(times) < len(state.ledger.clients):  # on Flower clients may join
            times = np.concatenate([times, np.zeros(len(state.ledger.clients) - len(times), dtype=np.int32)])
        times = times.copy()
        times[state.ledger.rows(result.plan.cohort)] += 1
        return LeastSelectedState(times)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(available[smallest(state.clients.times[available].astype(np.float64), count, rng)])
