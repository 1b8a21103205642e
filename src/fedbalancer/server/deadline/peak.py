"""Algorithm 4: the deadline of peak efficiency (DDL-E) for the selected clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup, batches_per_epoch
from fedbalancer.server.expected import completion_s, mean_completion_s, whole_seconds


def peak_deadline(completion: FloatArray, grid: Literal["integer", "continuous"] = "integer") -> tuple[float, float]:
    """The deadline t with the most completed clients per second, and that DDL-E; the earliest of equals.

    On the integer grid t = 1, 2, ... as published. Between two completions the count stays and t grows, so the peak is
    at a completion time rounded up, and sorting replaces the scan over seconds.

    >>> peak_deadline(np.array([9.5, 9.8, 60.0]))
    (10.0, 0.2)
    """
    times = np.maximum(np.ceil(completion), 1.0) if grid == "integer" else np.asarray(completion)
    times = np.sort(times)
    efficiency = np.arange(1, len(times) + 1) / times
    # Of equal times the last one carries the full count and hence the highest efficiency of its group.
    best = int(np.argmax(efficiency))
    return float(times[best]), float(efficiency[best])


@dataclass(frozen=True)
class PeakState:
    """The deadline until enough clients are known, and the seconds added after a failed round."""

    initial_s: float
    guard_s: float = 0.0


@dataclass(frozen=True)
class PeakDeadline(DeadlinePolicy):
    """ddl = dl + (dh - dl) ddlr, with dl and dh the deadlines of peak DDL-E at one and at E epochs.

    As published: where a few clients are much faster than the rest, dl may exceed dh.

    `counts` says how many samples a client is expected to train: "recent", the mean of its last five counts in
    whole batches (what the authors ran), or "over", the paper's (|OT| - 1) / B real-valued batches with |OT| of its
    last report (all samples before the first). Two rules are the authors' and not in the paper. The gate: DDL-E
    starts when more than `gate` of all clients or more than `gate_clients` have succeeded once; before, the deadline
    is the mean expected completion time with a forward pass. The guard: `guard_s` seconds are added after a round in
    which nobody succeeded, unless all clients failed for other reasons than time.
    """

    counts: Literal["recent", "over"] = "recent"
    grid: Literal["integer", "continuous"] = "integer"
    gate: float = 0.5
    gate_clients: int = 200
    guard_s: float = 10.0

    @property
    def needs_losses(self) -> bool:
        return self.counts == "over"

    @property
    def reacts_to(self) -> frozenset[Private]:
        return LOSSES if self.needs_losses else NOTHING

    def init(self, setup: Setup) -> PeakState:
        return PeakState(whole_seconds(mean_completion_s(setup, forward_pass=True)))

    def retime(self, setup: Setup, own: PeakState) -> PeakState:
        """The state with T computed again from what is known by now."""
        return replace(own, initial_s=self.init(setup).initial_s)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own: PeakState = state.deadline
        between = self.between(setup, state, cohort)
        if between is None:
            return own.initial_s, len(cohort)
        return interpolated(*between, state.pace.deadline_ratio), len(cohort)

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """dl and dh, once the gate is open."""
        known = int(state.ledger.explored.sum())
        if not len(cohort) or not (known > self.gate * len(state.ledger.clients) or known > self.gate_clients):
            return None
        return self.bounds(setup, state, cohort)

    def bounds(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float]:
        """dl and dh of a cohort."""
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
            return batches_per_epoch(recent, setup.batch_size, setup.epoch_batches)
        over = np.where(np.isnan(ledger.over_count[cohort]), ledger.size[cohort], ledger.over_count[cohort])
        expected = np.maximum(over - 1, 0) / setup.batch_size
        return np.asarray(expected if setup.epoch_batches is None else np.minimum(expected, setup.epoch_batches))


def interpolated(low: float, high: float, ratio: float) -> float:
    """dl + (dh - dl) ddlr."""
    return low + (high - low) * ratio
