"""A deadline policy: wait as long as a share of this round's clients is expected to need."""

from dataclasses import dataclass

import numpy as np

from fedbalancer.protocols import Stateless
from fedbalancer.server.expected import batches, completion_s
from fedbalancer.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class ExpectedShare(Stateless):
    """The deadline is the `share` quantile of the cohort's expected completion times."""

    share: float = 0.7

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        per_epoch = batches(state.ledger.recent_trained[cohort].mean(axis=1), setup.batch_size, setup.epoch_batches)
        expected = completion_s(state.ledger, per_epoch, setup.epochs, cohort)
        return float(np.quantile(expected, self.share)), len(cohort)
