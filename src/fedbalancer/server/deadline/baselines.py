"""Deadlines of other methods: a multiple of T, waiting for reports, TimelyFL's interval and PyramidFL's round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import BelowOne, Multiple, NonzeroShare, Step
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import completion_s, expected_first_s, expected_s, mean_completion_s, whole_seconds


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
class BoundedStaleness(DeadlinePolicy):
    """Pisces's pace: the server steps every L / `bound` seconds, where L is the longest expected time of a client.

    L is the maximum over the clients at work. A client then sees about `bound` steps at most while it works, so its
    report is at most about that stale (Jiang, Wang, Li and Li, "Pisces: Efficient Federated Learning via Guided
    Asynchronous Training", SoCC 2022, section 5).

    Difference from the paper: expected times are computed from mean network speed and mean batch latency, instead of
    the last measured time.

    Args:
        bound: Steps per longest time.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("pisces").deadline
        BoundedStaleness(bound=10.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    bound: Multiple = 10.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        earlier = state.ledger.rows(getattr(state.late, "clients", ()))
        at_work = np.union1d(cohort, earlier).astype(np.int64)
        if not len(at_work):
            return 1.0, 0
        return float(expected_s(setup, state.ledger, at_work).max()) / self.bound, len(cohort)


@dataclass(frozen=True)
class KthFastest(DeadlinePolicy):
    """TimelyFL: the time that the k-th fastest client of the cohort needs, where k is a `share` of n.

    The expected time covers transfer and `epochs` epochs over all local samples. Faster clients train more epochs. A
    client that needs t > T seconds trains the share T / t of the model (`LastLayers`) (Zhang et al., "TimelyFL:
    Heterogeneity-aware Asynchronous Federated Learning with Adaptive Partial Training", CVPR workshops 2023).

    Differences from the paper: a faster client stops at the task's epochs, as in every method here. The server computes
    times from mean network speed and reported batch latencies; in the paper, clients report theirs at the start of
    every round.

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
        # 1e-9 guards against 0.7 * 10 = 6.9999...
        k = max(int(self.share * len(cohort) + 1e-9), 1)
        return float(np.sort(self._expected_s(setup, state, cohort))[k - 1]), len(cohort)

    def part_sizes(self, setup: Setup, state: ServerState, cohort: IndexArray) -> FloatArray:
        """Return the share of the model for which each client has time: T / t, at most 1."""
        deadline_s, _ = self.plan(setup, state, cohort)
        return np.asarray(np.minimum(deadline_s / self._expected_s(setup, state, cohort), 1.0))

    def _expected_s(self, setup: Setup, state: ServerState, cohort: IndexArray) -> FloatArray:
        per_epoch = setup.per_epoch(state.ledger.size[cohort])
        return completion_s(setup, state.ledger, per_epoch, self.epochs, cohort)


@dataclass(frozen=True, eq=False)
class GradientUtilities:
    """State of `RankedByGradient`.

    Args:
        value: Gradient utility of each client; infinite before its first report.
    """

    value: FloatArray


@dataclass(frozen=True)
class RankedByGradient(DeadlinePolicy):
    """PyramidFL: the time of the K-th fastest client, whose upload is shorter the lower its gradient utility ranks.

    The gradient utility of a client is the norm of its last update times the number of samples that it trained. The K
    clients of the cohort with the shortest expected times are ranked by it, the highest first. A client of rank r (from
    0) drops the share `drop_low` + r (`drop_high` - `drop_low`) / K of its upload (`DroppedUpdate`), all others drop
    `drop_high`. The deadline is the longest expected time of the K clients with their shorter uploads. Faster clients
    train more (`RepeatedEpochs`) (Li, Zeng, Zhang and Cao, "PyramidFL: A Fine-grained Client Selection Framework for
    Efficient Federated Learning", MobiCom 2022).

    Differences from the authors' code: there, the server knows the duration of every client; here, it expects it from
    mean network speed and reported batch latencies, so that a client may miss the deadline. A client that has never
    reported ranks first. The upload is taken as half of the transfer time.

    Args:
        drop_low: Share that the client with the highest gradient utility drops.
        drop_high: Share that a client beyond rank K drops.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("pyramidfl").deadline
        RankedByGradient(drop_low=0.1, drop_high=0.6)
    """

    reacts_to: ClassVar[frozenset[Private]] = frozenset({"updates"})

    drop_low: BelowOne = 0.1
    drop_high: BelowOne = 0.6

    def init(self, setup: Setup) -> GradientUtilities:
        return GradientUtilities(np.full(len(setup.ledger.clients), np.inf))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> GradientUtilities:
        value = np.full(len(state.ledger.clients), np.inf)  # clients may join during a Flower run
        value[: len(state.deadline.value)] = state.deadline.value
        for report in result.reports:
            norm = float(np.linalg.norm(report.update.astype(np.float64)))
            value[state.ledger.position[report.client]] = norm * report.summary.trained
        return GradientUtilities(value)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        drops, fastest = self._drops(setup, state, cohort)
        upload_s = state.ledger.network_s[cohort] / 2
        expected = expected_first_s(setup, state.ledger, cohort) - drops * upload_s
        return max(float(expected[fastest].max()), 1e-9), len(fastest)

    def part_sizes(self, setup: Setup, state: ServerState, cohort: IndexArray) -> FloatArray:
        """Return the share of the update that each client sends."""
        return 1 - self._drops(setup, state, cohort)[0]

    def _drops(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[FloatArray, IndexArray]:
        """Return the share that each client drops, and the positions of the K fastest clients."""
        count = min(setup.clients_per_round, len(cohort))
        fastest = np.argsort(expected_first_s(setup, state.ledger, cohort), kind="stable")[:count]
        known = state.deadline.value
        utility = np.array([known[row] if row < len(known) else np.inf for row in cohort[fastest]])
        drops = np.full(len(cohort), self.drop_high)
        ranks = np.empty(count)
        ranks[np.argsort(-utility, kind="stable")] = np.arange(count)
        drops[fastest] = self.drop_low + ranks * (self.drop_high - self.drop_low) / max(count, 1)
        return drops, fastest
