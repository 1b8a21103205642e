"""Epsilon of noisy releases, and the noise for an epsilon.

All numbers are dp-accounting's. A sequence of Gaussian releases, each chosen after seeing those before, is exactly as
private as one with sqrt(releases) times less noise, for which that library has the exact conversion. There is no
amplification by sampling: the server knows who took part.
"""

from __future__ import annotations

import math
from typing import Any

from fedbalancer.core.errors import BadSetting, MissingData

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
