"""Epsilon of noisy releases, the noise for an epsilon, and releases per client."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.types import IndexArray, Ledger, RoundResult

DELTA = 1e-5
"""The chance with which the guarantee may fail, unless another is asked for."""
UNBOUNDED = 10**9
"""As many releases as nobody makes."""


def epsilon_of(noise_multiplier: float, releases: int, delta: float = DELTA) -> float:
    """Epsilon after so many releases whose noise has the deviation `noise_multiplier` times their sensitivity."""
    check_delta(delta)
    if releases < 0 or math.isnan(noise_multiplier) or noise_multiplier < 0:
        raise BadSetting(f"noise = {noise_multiplier} and releases = {releases} must be 0 or more")
    if releases == 0 or noise_multiplier == math.inf:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return float(with_dp_accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


def noise_for(epsilon: float, releases: int, delta: float = DELTA) -> float:
    """The least noise, over the sensitivity, with which so many releases stay within epsilon."""
    check_delta(delta)
    if not 0 < epsilon < math.inf or not 1 <= releases <= UNBOUNDED:
        raise BadSetting(f"epsilon = {epsilon} must be a finite number over 0, and releases = {releases} 1 or more")
    return float(with_dp_accounting().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def composed(*noise_multipliers: float) -> float:
    """The noise of one release that gives away as much as several of different noise together.

    >>> composed(3.0, 4.0), composed(2.0, math.inf), composed(0.0, 1.0)
    (2.4, 2.0, 0.0)
    """
    if 0 in noise_multipliers:
        return 0.0
    told = math.fsum(each**-2 for each in noise_multipliers)
    return 1 / math.sqrt(told) if told else math.inf


def most_releases(noise_multiplier: float, epsilon: float, delta: float = DELTA) -> int:
    """How many releases stay within epsilon; `UNBOUNDED` where there is no end."""
    if epsilon_of(noise_multiplier, UNBOUNDED, delta) <= epsilon:
        return UNBOUNDED
    within, beyond = 0, UNBOUNDED
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if epsilon_of(noise_multiplier, middle, delta) <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def check_delta(delta: float) -> None:
    """Refuse a delta that is no small chance."""
    if not 0 < delta < 1:
        raise BadSetting(f"delta = {delta} must be over 0 and under 1, and small: 1e-5, say")


def with_dp_accounting() -> Any:
    """The library, or what to install."""
    try:
        import dp_accounting
    except ImportError:
        raise MissingData(
            "epsilon is computed by dp-accounting, which is not installed: pip install 'fedbalancer[privacy]'"
        ) from None
    return dp_accounting


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
