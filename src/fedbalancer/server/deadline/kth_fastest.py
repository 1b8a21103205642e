"""TimelyFL's aggregation interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import NonzeroShare
from fedbalancer.core.types import IndexArray, ServerState, Setup, batches_per_epoch
from fedbalancer.server.expected import completion_s


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
        per_epoch = batches_per_epoch(state.ledger.size[cohort], setup.batch_size, setup.epoch_batches)
        expected = completion_s(setup, state.ledger, per_epoch, self.epochs, cohort)
        # 1e-9 guards against 0.7 * 10 = 6.9999...
        k = max(int(self.share * len(cohort) + 1e-9), 1)
        return float(np.sort(expected)[k - 1]), len(cohort)
