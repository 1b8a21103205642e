"""FedBuff: buffered asynchronous aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, RoundResult, ServerState, Setup
from fedbalancer.server.late.joins import staleness_weight
from fedbalancer.server.late.under_way import PendingClients

PAPER_BUFFER = 10
"""The paper's buffer size for all its tasks, with a hundred clients or more working concurrently."""


@dataclass(frozen=True)
class Buffered(LatePolicy):
    """FedBuff: K clients work concurrently, and the server steps after every `buffer` reports.

    After each step as many clients start, from the current model (Nguyen et al., "Federated Learning with Buffered
    Asynchronous Aggregation", AISTATS 2022).

    A step is the unweighted mean over the buffer of s D (the paper's Algorithm 1). D is an update relative to the model
    from which its client started; s = 1 / sqrt(1 + tau), where tau is the number of steps since then. The paper's eta_g
    is 1, or the step of the aggregator (`+momentum`).

    Difference from the paper: a round is one step, so a free place is filled with the next step, not immediately.

    Args:
        buffer: Reports per step. None: the paper's 10, but at most half of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbuff").late
        Buffered(buffer=None)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    buffer: int | None = None

    def init(self, setup: Setup) -> PendingClients:
        return PendingClients()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PendingClients:
        return PendingClients(result.under_way)

    def refuses(self, method: Any) -> str | None:
        enough = self.buffer is None or self.buffer >= 1
        return None if enough else f"Buffered(buffer={self.buffer}) must wait for at least 1 report"

    def rule(self) -> LateRule:
        return "counts"

    def room(self, setup: Setup, state: ServerState) -> int:
        return setup.clients_per_round - len(state.late.clients)

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        buffer = min(PAPER_BUFFER, (setup.clients_per_round + 1) // 2) if self.buffer is None else self.buffer
        return min(buffer, quorum + len(state.late.clients))  # at most as many as can arrive

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [
            replace(each, weight=1.0, update=each.update * np.float32(staleness_weight(each.staleness)))
            for each in reports
        ]
