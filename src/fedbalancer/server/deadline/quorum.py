"""No deadline: wait for a share of the cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedbalancer.protocols import Stateless
from fedbalancer.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class Quorum(Stateless):
    """The round closes when int(share n) of n clients have reported: all of them for WaitForAll, .8 for SmartPC."""

    share: float = 1.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        # The guard against 0.8 * 5 = 3.9999... is smaller than any share of a cohort.
        return math.inf, max(int(self.share * len(cohort) + 1e-9), min(1, len(cohort)))
