"""TimelyFL's aggregation interval: as long as the k-th fastest client of the round needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import IndexArray, ServerState, Setup, batches_per_epoch
from fedbalancer.server.expected import completion_s


@dataclass(frozen=True)
class KthFastest(DeadlinePolicy):
    """The time that the k-th fastest of n selected clients is expected to take for its transfer and `epochs` epochs
    over all its data, with k a `share` of n (Zhang et al., "TimelyFL: Heterogeneity-aware Asynchronous Federated
    Learning with Adaptive Partial Training", CVPR workshops 2023). Clients fit their work to it: faster ones do more
    epochs, slower ones less than one.

    Departures: a slower client trains a part of its batches (`WholeBatches`), where the paper's trains a part of the
    model, its last layers, on all of them; a faster one stops at the task's epochs, as every method here does. The
    server expects times from mean network speed and the batch latencies that it has heard of, where the paper's
    clients tell theirs at the start of every round."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    share: float = 0.5
    epochs: float = 1.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        per_epoch = batches_per_epoch(state.ledger.size[cohort], setup.batch_size, setup.epoch_batches)
        expected = completion_s(setup, state.ledger, per_epoch, self.epochs, cohort)
        # The guard against 0.7 * 10 = 6.9999... is smaller than any share of a cohort.
        k = max(int(self.share * len(cohort) + 1e-9), 1)
        return float(np.sort(expected)[k - 1]), len(cohort)
