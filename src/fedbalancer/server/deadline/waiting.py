"""No deadline: a round closes when enough clients have reported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import NonzeroShare
from fedbalancer.core.types import IndexArray, ServerState, Setup


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
