"""Uniform client selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class Uniform(ClientSelector):
    """Selects K clients uniformly without replacement (FedAvg, Prox, SampleSelection).

    With the same seed, all methods that use it select the same cohorts, so their results are directly comparable.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").clients
        Uniform()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(rng.choice(available, size=count, replace=False))
