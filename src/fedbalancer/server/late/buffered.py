"""FedBuff: a step of the server whenever enough reports have come, whenever they were sent for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, RoundResult, ServerState, Setup
from fedbalancer.server.late.joins import staleness_weight
from fedbalancer.server.late.under_way import UnderWay

PAPER_BUFFER = 10
"""The buffer that the paper finds good on all its tasks, with a hundred clients or more at work."""


@dataclass(frozen=True)
class Buffered(LatePolicy):
    """K clients are at work at any time, each from the model that it was sent; the server steps after every `buffer`
    reports, and as many clients start anew (Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
    AISTATS 2022).

    A step is the plain mean over the buffer of s D, with D an update relative to the model that its client started from
    and s = 1 / sqrt(1 + tau), tau the steps in between: as in the paper's Algorithm 1 clients count alike whatever
    their data, and stale reports make the step shorter. Its eta_g is 1, or the step of the aggregate (`+momentum`).
    `buffer` is the paper's 10, at most half of K; with a number it is that number.

    A round of this code is a step: a client whose place has become free starts with the next step, not at once.
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    buffer: int | None = None

    def init(self, setup: Setup) -> UnderWay:
        return UnderWay()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> UnderWay:
        return UnderWay(result.under_way)

    def refuses(self, method: Any) -> str | None:
        enough = self.buffer is None or self.buffer >= 1
        return None if enough else f"Buffered(buffer={self.buffer}) must wait for at least 1 report"

    def rule(self) -> LateRule:
        return "counts"

    def room(self, setup: Setup, state: ServerState) -> int:
        return setup.clients_per_round - len(state.late.clients)

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        buffer = min(PAPER_BUFFER, (setup.clients_per_round + 1) // 2) if self.buffer is None else self.buffer
        return min(buffer, quorum + len(state.late.clients))  # no more than may come

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [
            replace(each, weight=1.0, update=each.update * np.float32(staleness_weight(each.staleness)))
            for each in reports
        ]
