"""Client selection by another policy, with a count of who was chosen how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbalancer.core.contracts import ClientSelector
from fedbalancer.core.types import CountArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.clients.over_threshold import OverThresholdUtility


@dataclass(frozen=True, eq=False)
class CountedState:
    """What the other policy remembers, and how often each client was chosen (none: not yet)."""

    inner: Any
    chosen: CountArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def counts(self, ledger: Ledger) -> CountArray:
        """How often each client of the ledger was chosen: clients that joined since are at its end."""
        return np.concatenate([self.chosen, np.zeros(len(ledger.clients) - len(self.chosen), dtype=np.int32)])


@dataclass(frozen=True)
class Counted(Wrapping, ClientSelector):
    """What all policies share that leave the choice to another one, and step in by how often clients were chosen,
    whether they reported or not."""

    inner: ClientSelector = field(default_factory=OverThresholdUtility)

    def init(self, setup: Setup) -> CountedState:
        return CountedState(self.inner.init(setup))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> CountedState:
        own: CountedState = state.clients
        inner = self.inner.observe(setup, self.unwrapped(state), result)
        chosen = own.counts(state.ledger).copy()
        chosen[state.ledger.rows(result.plan.cohort)] += 1
        return CountedState(inner, chosen)
