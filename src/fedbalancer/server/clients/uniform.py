"""Uniform client selection: every available client is as likely as any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class Uniform(ClientSelector):
    """K clients without replacement (FedAvg, Prox, SampleSelection). Methods that share it meet the same cohorts
    under the same seed, so that their difference is not one of luck."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(rng.choice(available, size=count, replace=False))
