"""Base of selectors that wrap another selector and count selections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbalancer.core.contracts import ClientSelector
from fedbalancer.core.types import CountArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.clients.over_threshold import OverThresholdUtility


@dataclass(frozen=True, eq=False)
class CountingState:
    """State of a `CountingSelector`.

    Args:
        inner: State of the wrapped policy.
        selected: How many times each client was selected; empty before the first round.
    """

    inner: Any
    selected: CountArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def counts(self, ledger: Ledger) -> CountArray:
        """Return the number of selections per ledger row. Clients that joined later are at the end of the ledger."""
        return np.concatenate([self.selected, np.zeros(len(ledger.clients) - len(self.selected), dtype=np.int32)])


@dataclass(frozen=True)
class CountingSelector(Wrapping, ClientSelector):
    """Base of selectors that wrap another one and use how often each client was selected, with or without a report.

    Args:
        inner: The wrapped selector.
    """

    inner: ClientSelector = field(default_factory=OverThresholdUtility)

    def init(self, setup: Setup) -> CountingState:
        return CountingState(self.inner.init(setup))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> CountingState:
        own: CountingState = state.clients
        inner = self.inner.observe(setup, self.unwrapped(state), result)
        selected = own.counts(state.ledger).copy()
        selected[state.ledger.rows(result.plan.cohort)] += 1
        return CountingState(inner, selected)
