"""How often every client has told of its losses, and who may tell again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import IndexArray, Ledger, RoundResult
from fedbalancer.privacy.accounting import DELTA, epsilon_of, most_releases, noise_for

RELEASES = "privacy_releases"
"""The name of the counts in a checkpoint."""


class Spending:
    """Releases by client. A client whose next release would go beyond the budget is not asked again."""

    def __init__(self, most: int | None = None, quiet: Collection[str] = ()) -> None:
        """`most` releases of a client stay within the budget (None: there is none). `quiet` are the reasons for which a
        client is missing that has certainly sent nothing."""
        self.most, self._quiet = most, frozenset(quiet)
        self.releases: Counter[str] = Counter()

    def note(self, result: RoundResult) -> None:
        """Count a round. Who was too late may have told as much as who was not."""
        self.releases.update(report.client for report in result.reports)
        self.releases.update(missing.client for missing in result.missing if missing.why not in self._quiet)

    def may(self, client: str) -> bool:
        """Whether the budget leaves the client another release."""
        return self.most is None or self.releases[client] < self.most

    def allowed(self, ledger: Ledger, rows: IndexArray) -> IndexArray:
        """Those of these ledger rows whose clients may be asked."""
        if self.most is None:
            return rows
        spent = [ledger.position[client] for client, count in self.releases.items() if count >= self.most]
        return rows[~np.isin(rows, spent)] if spent else rows

    def is_over(self, clients: Collection[str]) -> bool:
        """Whether nobody may be asked again."""
        if self.most is None:
            return False
        return sum(count >= self.most for count in self.releases.values()) >= len(clients)

    def to_array(self, clients: Iterable[str]) -> Any:
        """The counts in the order of these clients, for a checkpoint."""
        return np.array([self.releases[client] for client in clients], dtype=np.int32)

    def load(self, counts: Mapping[str, int]) -> None:
        """Take up saved counts."""
        self.releases = Counter({client: int(count) for client, count in counts.items() if count})


def spending_of(
    noise_multiplier: float, budget: float | None = None, delta: float = DELTA, quiet: Collection[str] = ()
) -> Spending | None:
    """The counts of a run whose clients release with this noise; None where there is nothing to count: without noise
    one release gives everything away."""
    if budget is None:
        return Spending(None, quiet) if 0 < noise_multiplier < math.inf else None
    most = most_releases(noise_multiplier, budget, delta)
    if not most:
        needed = f"noise {noise_for(budget, 1, delta):.4g} times the sensitivity"
        spent = epsilon_of(noise_multiplier, 1, delta)
        raise BadSetting(
            f"epsilon_budget = {budget:g}: the first report of a client has epsilon {spent:.4g} already; it needs "
            f"{needed}, as `fedbalancer privacy plan` tells for any number of rounds"
        )
    return Spending(most, quiet)
