"""No deadline: the round closes when enough clients have reported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import IndexArray, ServerState, Setup


@dataclass(frozen=True)
class WaitForShare(DeadlinePolicy):
    """The round closes when int(share n) of n clients have reported: all of them for WaitForAll, .8 for SmartPC."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    share: float = 1.0

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        # The guard against 0.8 * 5 = 3.9999... is smaller than any share of a cohort.
        return math.inf, max(int(self.share * len(cohort) + 1e-9), min(1, len(cohort)))


@dataclass(frozen=True)
class FirstReports(DeadlinePolicy):
    """The round closes at the K-th report, or at the last one of a smaller cohort. For client selectors that invite
    more than K to be rid of the slowest (Oort's over-commitment)."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return math.inf, min(setup.clients_per_round, len(cohort))
