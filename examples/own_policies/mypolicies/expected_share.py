"""A deadline policy: wait until a share of the selected clients is expected to finish."""

from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import DeadlinePolicy
from fedbalancer.core.types import IndexArray, ServerState, Setup
from fedbalancer.server.expected import expected_s


@dataclass(frozen=True)
class ExpectedShare(DeadlinePolicy):
    """The deadline is the `share` quantile of the cohort's expected completion times."""

    share: float = 0.7

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        expected = expected_s(setup, state.ledger, cohort)
        return float(np.quantile(expected, self.share)), len(cohort)
