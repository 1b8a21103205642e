"""Algorithm 4: the deadline of peak efficiency (DDL-E) for the selected clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import Bounds, Seconds, Share
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import completion_s, mean_completion_s, whole_seconds


def peak_deadline(completion: FloatArray, grid: Literal["integer", "continuous"] = "integer") -> tuple[float, float]:
    """Return the deadline with the most completed clients per second, and its DDL-E (Algorithm 4, FindPeakDDL-E).

    Between two completion times the count is constant and t grows. The peak is therefore at a completion time (rounded
    up on the integer grid), and sorting replaces the paper's scan over seconds.

    Args:
        completion: Expected completion time of each client, in seconds.
        grid: `"integer"` for t = 1, 2, ... as in the paper, or `"continuous"`.

    Returns:
        The earliest best deadline in seconds, and its DDL-E.

    Example:
        >>> peak_deadline(np.array([9.5, 9.8, 60.0]))
        (10.0, 0.2)
    """
    times = np.maximum(np.ceil(completion), 1.0) if grid == "integer" else np.asarray(completion)
    times = np.sort(times)
    efficiency = np.arange(1, len(times) + 1) / times
    # Among equal times, the last has the full count and therefore the highest efficiency.
    best = int(np.argmax(efficiency))
    return float(times[best]), float(efficiency[best])


@dataclass(frozen=True)
class PeakState:
    """State of `PeakDeadline`.

    Args:
        initial_s: Deadline until enough clients have reported.
        guard_s: Seconds added after a failed round.
    """

    initial_s: float
    guard_s: float = 0.0


@dataclass(frozen=True)
class PeakDeadline(DeadlinePolicy):
    """Algorithm 4: ddl = dl + (dh - dl) ddlr, where dl and dh are the deadlines of peak DDL-E at one and at E epochs.

    As in the paper, dl may exceed dh if a few clients are much faster than the rest.

    Two rules are the authors' code's, not the paper's. Gate: until enough clients have reported, the deadline is the
    mean expected completion time with a forward pass. Guard: `guard_s` seconds are added after a round that no client
    completed, unless all clients failed for other reasons than time.

    Args:
        counts: Expected number of samples a client trains. `"recent"`: mean of its last five counts, in whole batches,
            as in the authors' code. `"over"`: the paper's (|OT| - 1) / B batches, with |OT| of its last report (all
            samples before the first).
        grid: Grid of `peak_deadline`.
        gate: Share of all clients that must have reported before DDL-E is used.
        gate_clients: Number of clients that also opens the gate.
        guard_s: Seconds added after a failed round.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").deadline
        PeakDeadline(counts='recent', grid='integer', gate=0.5, gate_clients=200, guard_s=10.0)
    """

    counts: Literal["recent", "over"] = "recent"
    grid: Literal["integer", "continuous"] = "integer"
    gate: Share = 0.5
    gate_clients: Annotated[int, Bounds(ge=0)] = 200
    guard_s: Seconds = 10.0

    @property
    def needs_losses(self) -> bool:
        return self.counts == "over"

    @property
    def reacts_to(self) -> frozenset[Private]:
        return LOSSES if self.needs_losses else NOTHING

    def init(self, setup: Setup) -> PeakState:
        return PeakState(whole_seconds(mean_completion_s(setup, forward_pass=True)))

    def retime(self, setup: Setup, own: PeakState) -> PeakState:
        """Return the state with T computed again from the current ledger."""
        return replace(own, initial_s=self.init(setup).initial_s)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own: PeakState = state.deadline
        between = self.between(setup, state, cohort)
        if between is None:
            return own.initial_s, len(cohort)
        return interpolate(*between, state.pace.deadline_ratio), len(cohort)

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """Return dl and dh, or None while the gate is closed."""
        known = int(state.ledger.explored.sum())
        if not len(cohort) or not (known > self.gate * len(state.ledger.clients) or known > self.gate_clients):
            return None
        return self.bounds(setup, state, cohort)

    def bounds(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float]:
        """Return dl and dh of a cohort."""
        epoch_batches = self._epoch_batches(setup, state, cohort)
        one, every = (
            completion_s(setup, state.ledger, epoch_batches, epochs, cohort) + state.deadline.guard_s
            for epochs in (1, setup.epochs)
        )
        return peak_deadline(one, self.grid)[0], peak_deadline(every, self.grid)[0]

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PeakState:
        return PeakState(state.deadline.initial_s, self.guard_s if result.ran_out_of_time else 0.0)

    def _epoch_batches(self, setup: Setup, state: ServerState, cohort: IndexArray) -> FloatArray:
        ledger = state.ledger
        if self.counts == "recent":
            recent = ledger.recent_trained[cohort].mean(axis=1)
            return setup.per_epoch(recent)
        over = np.where(np.isnan(ledger.over_count[cohort]), ledger.size[cohort], ledger.over_count[cohort])
        expected = np.maximum(over - 1, 0) / setup.batch_size
        return np.asarray(expected if setup.epoch_batches is None else np.minimum(expected, setup.epoch_batches))


def interpolate(low: float, high: float, ratio: float) -> float:
    """Return dl + (dh - dl) ddlr.

    Args:
        low: Deadline low, dl.
        high: Deadline high, dh.
        ratio: Deadline ratio, ddlr.
    """
    return low + (high - low) * ratio
