"""The deadline with the most useful work per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup, batches_per_epoch
from fedbalancer.server.expected import forward_pass_batches

POINTS = 256
"""Number of deadlines tried between the shortest and the longest useful one, besides completion times.

They are one per cent apart if the longest is ten times the shortest.
"""


def useful_deadline(
    network_s: FloatArray, batch_s: FloatArray, most_batches: FloatArray, overhead_s: float, gamma: float
) -> float:
    """Return the t that maximises the sum over clients of b(t)^gamma / (t + overhead).

    b(t) is the number of whole batches that a client trains in t, at most `most_batches`. With one client and unlimited
    work, t - network = gamma / (1 - gamma) (network + overhead).

    Args:
        network_s: Transfer time of each client, in seconds.
        batch_s: Seconds per batch of each client.
        most_batches: Largest number of batches of each client.
        overhead_s: Seconds that a round takes in addition to t.
        gamma: Exponent of the value of batches.

    Returns:
        The earliest best deadline in seconds.

    Example:
        >>> round(useful_deadline(np.array([10.0]), np.array([0.1]), np.array([1e4]), 20.0, 0.5), -1)
        40.0
    """
    first, last = network_s + batch_s, network_s + batch_s * most_batches
    between = np.clip(np.geomspace(first.min(), last.max(), POINTS), first.min(), last.max())  # it rounds its ends
    candidates = np.unique(np.concatenate([first, last, between]))
    batches = np.minimum((candidates[:, None] - network_s) / batch_s + 1e-9, most_batches)
    useful = np.where(batches >= 1, np.maximum(batches, 0.0) ** gamma, 0.0).sum(axis=1)
    return float(candidates[np.argmax(useful / (candidates + overhead_s))])


@dataclass(frozen=True)
class UsefulState:
    """State of `UsefulWork`.

    Args:
        window_s: Duration of the last client selection, in seconds.
        failed: Number of consecutive rounds without a report.
    """

    window_s: float = 0.0
    failed: int = 0


@dataclass(frozen=True)
class UsefulWork(DeadlinePolicy):
    """Ours, used by canter: the deadline at which the next batch is worth less than the next round.

    For clients that may stop after any batch (`WholeBatches`), every deadline yields some work. n batches are valued at
    n^gamma, because local steps build on each other and drift away from other clients. A round's fixed costs, client
    selection and network, are measured.

    Algorithm 4's peak of completed clients per second is the special case of clients that contribute all or nothing.
    After rounds that no client completed in time, the deadline doubles until one does.

    Args:
        gamma: Exponent of the value of batches, between 0 and 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter").deadline
        UsefulWork(gamma=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    gamma: float = 0.5

    def init(self, setup: Setup) -> UsefulState:
        return UsefulState()

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        own, ledger = state.deadline, state.ledger
        network_s, batch_s = ledger.network_s[cohort], ledger.batch_s[cohort]
        if setup.forward_pass_every_round:
            network_s = network_s + forward_pass_batches(setup, ledger.size[cohort]) * batch_s
        most = setup.epochs * batches_per_epoch(ledger.size[cohort], setup.batch_size, setup.epoch_batches)
        deadline_s = useful_deadline(network_s, batch_s, most.astype(np.float64), own.window_s, self.gamma)
        return deadline_s * 2.0 ** min(own.failed, 30), len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> UsefulState:
        own: UsefulState = state.deadline
        failed = (
            own.failed + 1 if result.ran_out_of_time else 0 if result.reports or not result.plan.cohort else own.failed
        )
        return UsefulState(result.window_s, failed)
