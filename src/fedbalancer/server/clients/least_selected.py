"""REFL's client selection: rarely available clients first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import CountArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.clients.draws import pick_smallest


@dataclass(frozen=True, eq=False)
class LeastSelectedState:
    """State of `LeastSelected`.

    Args:
        times: How many times each client was selected.
    """

    times: CountArray


@dataclass(frozen=True)
class LeastSelected(ClientSelector):
    """REFL's participant selection: the K available clients that were selected least often, ties at random.

    Abdelmoniem et al., "REFL: Resource-Efficient Federated Learning", EuroSys 2023, Intelligent Participant Selection.

    Difference from the paper: there, clients predict their own availability, the least available are selected, and a
    selected client pauses for five rounds. Here, no client predicts anything. A rarely available client has been
    selected rarely, so it is selected when it is available. If all clients are always available, they take turns.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("refl").clients
        LeastSelected()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def init(self, setup: Setup) -> LeastSelectedState:
        return LeastSelectedState(np.zeros(len(setup.ledger.clients), dtype=np.int32))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LeastSelectedState:
        times = state.clients.times
        if len(times) < len(state.ledger.clients):  # clients may join during a Flower run
            times = np.concatenate([times, np.zeros(len(state.ledger.clients) - len(times), dtype=np.int32)])
        times = times.copy()
        times[state.ledger.rows(result.plan.cohort)] += 1
        return LeastSelectedState(times)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(available[pick_smallest(state.clients.times[available].astype(np.float64), count, rng)])
