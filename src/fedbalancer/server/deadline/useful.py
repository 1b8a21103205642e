"""The deadline with the most useful work per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup, batches_per_epoch
from fedbalancer.server.expected import forward_pass_batches

POINTS = 256
"""Deadlines that are tried between the shortest and the longest that make sense, beside those at which a client is
done: one per cent apart where the longest is ten times the shortest."""


def useful_deadline(
    network_s: FloatArray, batch_s: FloatArray, most_batches: FloatArray, overhead_s: float, gamma: float
) -> float:
    """The t with the largest sum over clients of b(t)^gamma / (t + overhead), b(t) the whole batches that a client
    does in t, at most `most_batches`; the earliest of equals.

    With one client and a work without end that is t - network = gamma / (1 - gamma) (network + overhead): rounds are
    as much longer than what they cost anyway as a batch is worth after the others.

    >>> round(useful_deadline(np.array([10.0]), np.array([0.1]), np.array([1e4]), 20.0, 0.5), -1)
    40.0
    """
    first, last = network_s + batch_s, network_s + batch_s * most_batches
    between = np.clip(np.geomspace(first.min(), last.max(), POINTS), first.min(), last.max())  # its ends are rounded
    tried = np.unique(np.concatenate([first, last, between]))
    batches = np.minimum((tried[:, None] - network_s) / batch_s + 1e-9, most_batches)
    useful = np.where(batches >= 1, np.maximum(batches, 0.0) ** gamma, 0.0).sum(axis=1)
    return float(tried[np.argmax(useful / (tried + overhead_s))])


@dataclass(frozen=True)
class UsefulState:
    """What selecting clients took last, and how many rounds in a row had no report."""

    window_s: float = 0.0
    failed: int = 0


@dataclass(frozen=True)
class UsefulWork(DeadlinePolicy):
    """Ours: clients that stop after the batches that fit bring something at any deadline, so the question is when the
    next batch is worth less than the next round. So many batches are taken to be worth their number to the power of
    gamma: local steps go on from each other, and away from those of the other clients. What a round costs whatever it
    does, the selection of clients and the network, is measured.

    Algorithm 4's peak, the most clients that are done per second, is the case of clients that bring all or nothing.
    After rounds in which nobody finished in time the deadline is doubled, until somebody does.
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
        found = useful_deadline(network_s, batch_s, most.astype(np.float64), own.window_s, self.gamma)
        return found * 2.0 ** min(own.failed, 30), len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> UsefulState:
        own: UsefulState = state.deadline
        failed = (
            own.failed + 1 if result.ran_out_of_time else 0 if result.reports or not result.plan.cohort else own.failed
        )
        return UsefulState(result.window_s, failed)
