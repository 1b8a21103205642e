"""Deadlines of the baselines: a multiple of T, waiting for reports, and TimelyFL's interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import NonzeroShare, Step
from fedbalancer.core.types import IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import completion_s, mean_completion_s, whole_seconds


@dataclass(frozen=True)
class FixedState:
    """State of `FixedDeadline`.

    Args:
        deadline_s: The deadline in seconds.
    """

    deadline_s: float


@dataclass(frozen=True)
class FixedDeadline(DeadlinePolicy):
    """A constant deadline of `multiple` times T (the paper's 1T and 2T).

    T is the mean expected completion time over all training clients. The product is truncated to whole seconds. A round
    ends early when all clients have reported.

    Args:
        multiple: Factor of T.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg[deadline=.5T]").deadline
        FixedDeadline(multiple=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    multiple: Step = 1.0

    def init(self, setup: Setup) -> FixedState:
        return FixedState(whole_seconds(self.multiple * mean_completion_s(setup)))

    def retime(self, setup: Setup, own: FixedState) -> FixedState:
        """Return the state with T computed again from the current ledger."""
        return self.init(setup)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return state.deadline.deadline_s, len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> FixedState:
        own: FixedState = state.deadline
        return own


@dataclass(frozen=True)
class WaitForShare(DeadlinePolicy):
    """Closes a round when int(share n) of n clients have reported (the paper's WaitForAll and SmartPC).

    Args:
        share: Share of the cohort to wait for: 1 for WaitForAll, 0.8 for SmartPC.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+spc").deadline
        WaitForShare(share=0.8)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    share: NonzeroShare = 1.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        # 1e-9 guards against 0.8 * 5 = 3.9999...
        return math.inf, max(int(self.share * len(cohort) + 1e-9), min(1, len(cohort)))


@dataclass(frozen=True)
class FirstReports(DeadlinePolicy):
    """Closes a round at the K-th report, or at the last one of a smaller cohort.

    For client selectors that invite more than K clients to avoid waiting for the slowest (Oort).

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("oort").deadline
        FirstReports()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return math.inf, min(setup.clients_per_round, len(cohort))


@dataclass(frozen=True)
class KthFastest(DeadlinePolicy):
    """TimelyFL: the time that the k-th fastest client of the cohort needs, where k is a `share` of n.

    The expected time covers transfer and `epochs` epochs over all local samples. Clients fit their work to it: faster
    ones train more epochs, slower ones less than one (Zhang et al., "TimelyFL: Heterogeneity-aware Asynchronous
    Federated Learning with Adaptive Partial Training", CVPR workshops 2023).

    Differences from the paper: a slower client trains part of its batches (`WholeBatches`); the paper's trains part of
    the model, its last layers, on all batches. A faster client stops at the task's epochs, as in every method here. The
    server computes times from mean network speed and reported batch latencies; in the paper, clients report theirs at
    the start of every round.

    Args:
        share: Share of the cohort that is expected to finish.
        epochs: Epochs that this share is expected to train.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("timelyfl").deadline
        KthFastest(share=0.5, epochs=1.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    share: NonzeroShare = 0.5
    epochs: float = 1.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        per_epoch = setup.per_epoch(state.ledger.size[cohort])
        expected = completion_s(setup, state.ledger, per_epoch, self.epochs, cohort)
        # 1e-9 guards against 0.7 * 10 = 6.9999...
        k = max(int(self.share * len(cohort) + 1e-9), 1)
        return float(np.sort(expected)[k - 1]), len(cohort)
