"""Epsilon of noisy releases, the noise for an epsilon, and the releases of every client.

All epsilons are computed by dp-accounting. A sequence of Gaussian releases, each chosen after seeing the previous ones,
is exactly as private as one release with sqrt(releases) times less noise, for which that library has the exact
conversion. There is no amplification by sampling, because the server knows who took part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.types import IndexArray, Ledger, RoundResult

DELTA = 1e-5
"""Default delta: the probability with which the guarantee may fail."""
UNBOUNDED = 10**9
"""More releases than any run makes."""
RELEASES = "privacy_releases"
"""Name of the counts in a checkpoint."""


def epsilon_of(noise_multiplier: float, releases: int, delta: float = DELTA) -> float:
    """Return the epsilon of a number of releases.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the sensitivity of a release.
        releases: Number of releases.
        delta: Delta of the guarantee.

    Returns:
        Epsilon; 0 without releases, infinite without noise.

    Raises:
        BadSetting: If a value is out of range.
        MissingData: If dp-accounting is not installed.
    """
    check_delta(delta)
    if releases < 0 or math.isnan(noise_multiplier) or noise_multiplier < 0:
        raise BadSetting(f"noise = {noise_multiplier} and releases = {releases} must be 0 or more")
    if releases == 0 or noise_multiplier == math.inf:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return float(load_dp_accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


def noise_for(epsilon: float, releases: int, delta: float = DELTA) -> float:
    """Return the smallest noise multiplier with which a number of releases stays within epsilon.

    Args:
        epsilon: Epsilon of all releases together.
        releases: Number of releases.
        delta: Delta of the guarantee.

    Returns:
        Standard deviation of the noise divided by the sensitivity of a release.

    Raises:
        BadSetting: If a value is out of range.
    """
    check_delta(delta)
    if not 0 < epsilon < math.inf or not 1 <= releases <= UNBOUNDED:
        raise BadSetting(f"epsilon = {epsilon} must be finite and above 0, and releases = {releases} 1 or more")
    return float(load_dp_accounting().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def compose_noise(*noise_multipliers: float) -> float:
    """Return the noise multiplier of one release that reveals as much as several releases together.

    >>> compose_noise(3.0, 4.0), compose_noise(2.0, math.inf), compose_noise(0.0, 1.0)
    (2.4, 2.0, 0.0)

    Args:
        *noise_multipliers: Noise multiplier of each release.

    Returns:
        The combined noise multiplier.
    """
    if 0 in noise_multipliers:
        return 0.0
    precision = math.fsum(each**-2 for each in noise_multipliers)
    return 1 / math.sqrt(precision) if precision else math.inf


def most_releases(noise_multiplier: float, epsilon: float, delta: float = DELTA) -> int:
    """Return the largest number of releases within epsilon.

    Args:
        noise_multiplier: Standard deviation of the noise divided by the sensitivity of a release.
        epsilon: Epsilon of all releases together.
        delta: Delta of the guarantee.

    Returns:
        The number of releases; `UNBOUNDED` if there is no limit.
    """
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
    """Raise `BadSetting` unless delta is a probability above 0 and below 1."""
    if not 0 < delta < 1:
        raise BadSetting(f"delta = {delta} must be above 0 and below 1, for example 1e-5")


def load_dp_accounting() -> Any:
    """Import dp-accounting, or raise `MissingData` with the command that installs it."""
    try:
        import dp_accounting
    except ImportError:
        raise MissingData(
            "epsilon is computed by dp-accounting, which is not installed: pip install 'fedbalancer[privacy]'"
        ) from None
    return dp_accounting


class Spending:
    """Counts the releases of every client, and excludes clients whose next release would exceed the budget.

    Args:
        most: Releases of a client within the budget. None: no budget.
        quiet: Failure reasons of clients that have certainly sent nothing.
    """

    def __init__(self, most: int | None = None, quiet: Collection[str] = ()) -> None:
        self.most, self._quiet = most, frozenset(quiet)
        self.releases: Counter[str] = Counter()

    def note(self, result: RoundResult) -> None:
        """Count a round; a late client may have released as much as others."""
        self.releases.update(report.client for report in result.reports)
        self.releases.update(missing.client for missing in result.missing if missing.why not in self._quiet)

    def can_release(self, client: str) -> bool:
        """Return whether the budget allows another release of the client."""
        return self.most is None or self.releases[client] < self.most

    def allowed(self, ledger: Ledger, rows: IndexArray) -> IndexArray:
        """Return the ledger rows whose clients may release again."""
        if self.most is None:
            return rows
        spent = [ledger.position[client] for client, count in self.releases.items() if count >= self.most]
        return rows[~np.isin(rows, spent)] if spent else rows

    def is_over(self, clients: Collection[str]) -> bool:
        """Return whether no client may release again."""
        if self.most is None:
            return False
        return sum(count >= self.most for count in self.releases.values()) >= len(clients)

    def to_array(self, clients: Iterable[str]) -> Any:
        """Return the counts in the order of `clients`, for a checkpoint."""
        return np.array([self.releases[client] for client in clients], dtype=np.int32)

    def load(self, counts: Mapping[str, int]) -> None:
        """Restore saved counts."""
        self.releases = Counter({client: int(count) for client, count in counts.items() if count})


def spending_of(
    noise_multiplier: float, budget: float | None = None, delta: float = DELTA, quiet: Collection[str] = ()
) -> Spending | None:
    """Create the counts of a run.

    Args:
        noise_multiplier: Noise multiplier of a client's release.
        budget: Largest epsilon of a client. None: no budget.
        delta: Delta of the guarantee.
        quiet: Failure reasons of clients that have certainly sent nothing.

    Returns:
        The counts; None if epsilon is 0 or infinite anyway.

    Raises:
        BadSetting: If the first release exceeds the budget.
    """
    if budget is None:
        return Spending(None, quiet) if 0 < noise_multiplier < math.inf else None
    most = most_releases(noise_multiplier, budget, delta)
    if not most:
        needed = f"noise {noise_for(budget, 1, delta):.4g} times the sensitivity"
        spent = epsilon_of(noise_multiplier, 1, delta)
        raise BadSetting(
            f"epsilon_budget = {budget:g}: the first report of a client already has epsilon {spent:.4g}; it needs "
            f"{needed}. `fedbalancer privacy plan` computes the noise for any number of rounds"
        )
    return Spending(most, quiet)
