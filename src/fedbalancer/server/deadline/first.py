"""No deadline: the first K reports of a larger cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedbalancer.protocols import Stateless
from fedbalancer.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class FirstReports(Stateless):
    """The round closes at the K-th report, or at the last one of a smaller cohort. For client selectors that invite
    more than K to be rid of the slowest (Oort's over-commitment)."""

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return math.inf, min(setup.clients_per_round, len(cohort))
