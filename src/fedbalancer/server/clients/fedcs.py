"""FedCS: as many clients as fit the round's deadline (Nishio, Yonetani, 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup
from fedbalancer.server.clients.draws import smallest
from fedbalancer.server.expected import expected_s


@dataclass(frozen=True)
class FedCS(ClientSelector):
    """`candidates` K random clients tell what time they will need (the paper's resource request); the K fastest of them
    take part.

    The paper adds clients greedily, the one that costs the least time first, while the round's time is not used up. It
    lets them upload one after the other, so every client lengthens the round. Here, as for every method, clients
    upload side by side: a client costs its own time and no more, the greedy order is that of expected durations,
    and no K of the candidates hold more that meet the deadline than the K fastest, whatever the deadline is.
    So FedCS needs no deadline of its own; its baseline is `FixedDeadline(1)`. Departures: where fewer than K fit, the
    next fastest are invited as well, since a round is asked for K clients; where more than K fit, K take part.
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    candidates: float = 2.0

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        asked = min(max(int(self.candidates * setup.clients_per_round + 1e-9), count), len(available))
        rows = np.sort(rng.choice(available, size=asked, replace=False))
        return np.sort(rows[smallest(expected_s(setup, state.ledger, rows), count, rng)])
