"""FedCS: the fastest of some random candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.fields import Multiple
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup
from fedbalancer.server.clients.draws import pick_smallest
from fedbalancer.server.expected import expected_s


@dataclass(frozen=True)
class FedCS(ClientSelector):
    """FedCS: K fastest of `candidates` K random clients (Nishio and Yonetani, 2019).

    The paper adds clients greedily by the time they cost, until the round's time is used up. There, uploads are
    sequential, so every client lengthens the round. Here, as for every method, uploads are parallel: the greedy order
    is the order of expected durations, and for any deadline the K fastest candidates contain the most clients that meet
    it. FedCS therefore needs no particular deadline policy; its baseline is `FixedDeadline(1)`.

    Difference from the paper: always K clients are invited, whether more or fewer of them fit the deadline.

    Args:
        candidates: Number of candidates, as a multiple of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedcs").clients
        FedCS(candidates=2.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    candidates: Multiple = 2.0

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        asked = min(max(int(self.candidates * setup.clients_per_round + 1e-9), count), len(available))
        rows = np.sort(rng.choice(available, size=asked, replace=False))
        return np.sort(rows[pick_smallest(expected_s(setup, state.ledger, rows), count, rng)])
