"""Speed-up ratios over seeds, with intervals and tests that handle runs which never reach the target.

All ratios are averaged on the log scale, where twice as fast and half as fast are equally far from no difference, so
the mean is the geometric mean. A run that never reaches the target is right-censored at the last second it ran. It
counts neither as 0 nor as missing: its ratio is a bound, and then so is the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.types import FloatArray

CONFIDENCE = 0.95
FEWEST = 5
"""Minimum number of seeds for a bootstrap interval; fewer values have too few resamples."""
RESAMPLES = 9999


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its sample standard deviation (ddof 1) and 95% t-interval; None where undefined."""

    mean: float | None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate the mean from one value per seed.

        Args:
            values: One value per seed. An empty sequence gives an empty estimate; one value gives a mean only.
        """
        if not values:
            return cls(None)
        mean = float(np.mean(values))
        if len(values) == 1:
            return cls(mean)
        from scipy import stats

        std = float(np.std(values, ddof=1))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * std / len(values) ** 0.5
        return cls(mean, std, mean - half, mean + half)


@dataclass(frozen=True)
class Arrival:
    """When a run reached a target.

    Attributes:
        seconds: The time of the target or, if it was not reached, the last second the run covers.
        reached: Whether the target was reached.
    """

    seconds: float
    reached: bool = True


@dataclass(frozen=True)
class Ratio(Estimate):
    """The geometric mean of paired ratios with its 95% interval.

    Attributes:
        bound: "<" or ">" if the mean is only an upper or a lower bound. Then at most one end of the interval is known.
        p: P-value of the paired test that the ratio is 1.
        seeds: Number of pairs.
    """

    bound: str = ""
    p: float | None = None
    seeds: int = 0

    @property
    def resolved(self) -> str:
        """The direction the interval shows: "faster" or "slower" if it excludes 1, otherwise ""."""
        if self.low is not None and self.low > 1:
            return "faster"
        return "slower" if self.high is not None and self.high < 1 else ""


def median_s(arrivals: Sequence[Arrival]) -> tuple[float | None, float | None]:
    """Compute the Kaplan-Meier median of times, or a lower bound if fewer than half of the runs reach the target.

    Args:
        arrivals: One arrival per run.

    Returns:
        The median and None, or None and a time that the median exceeds. Both are None without runs.

    Example:
        >>> median_s([Arrival(10.0), Arrival(20.0), Arrival(40.0, reached=False)])
        (20.0, None)
        >>> median_s([Arrival(10.0), Arrival(30.0, reached=False), Arrival(40.0, reached=False)])
        (None, 30.0)
    """
    if not arrivals:
        return None, None
    from scipy import stats

    reached = [arrival.seconds for arrival in arrivals if arrival.reached]
    censored = [arrival.seconds for arrival in arrivals if not arrival.reached]
    survival = stats.ecdf(stats.CensoredData(uncensored=reached, right=censored)).sf
    below = np.flatnonzero(survival.probabilities <= 0.5 + 1e-12)
    if len(below):
        return float(survival.quantiles[below[0]]), None
    return None, float(np.quantile([arrival.seconds for arrival in arrivals], 0.5, method="lower"))


def one_ratio(reference: Arrival, mine: Arrival) -> tuple[float, str]:
    """Compute how many times as fast as the reference one run is.

    Args:
        reference: Arrival of the reference run.
        mine: Arrival of the run to score.

    Returns:
        The ratio and whether it is a bound: "" if both runs reached the target, "<" if only the reference did, ">" if
        only this run did, "?" if neither did.

    Example:
        >>> one_ratio(Arrival(100.0), Arrival(50.0)), one_ratio(Arrival(100.0), Arrival(200.0, reached=False))
        ((2.0, ''), (0.5, '<'))
    """
    bound = "" if reference.reached and mine.reached else "<" if reference.reached else ">" if mine.reached else "?"
    return reference.seconds / mine.seconds, bound


def paired_ratio(pairs: Sequence[tuple[Arrival, Arrival]]) -> Ratio:
    """Average the speed-ups of paired runs.

    Args:
        pairs: (reference, run) of every seed.

    Returns:
        The geometric mean with its interval. The mean is None if the seeds mix both kinds of bounds, or if neither run
        of a pair reached the target.
    """
    ratios = [one_ratio(*pair) for pair in pairs]
    bounds = {bound for _, bound in ratios if bound}
    if not ratios or "?" in bounds or len(bounds) > 1:
        return Ratio(None, seeds=len(ratios))
    logs = np.log([value for value, _ in ratios])
    bound = next(iter(bounds), "")
    low, high = _interval(logs, bool(bound))
    std = float(np.std(np.exp(logs), ddof=1)) if len(logs) > 1 and not bound else None
    return Ratio(
        float(np.exp(logs.mean())), std, None if bound == "<" else low, None if bound == ">" else high,
        bound, _sign_test(ratios) if bound else _flip_test(logs), len(logs),
    )  # fmt: skip


def _interval(logs: FloatArray, bounds: bool) -> tuple[float | None, float | None]:
    """Return the 95% interval of the geometric mean.

    If some values are upper (lower) bounds, the upper (lower) end is still valid, because the mean of every resample
    grows with each of its values. This does not hold for Student's interval.

    From five values on, this is the bootstrap percentile interval with its level expanded as by Student's t. Without
    the expansion, a nominal 95% covers 83% of cases with five values and 91% with ten (normal logs); with it 91% and
    95%. With fewer values this is Student's interval.
    """
    count = len(logs)
    if count < 2 or (bounds and count < FEWEST):
        return None, None
    if np.ptp(logs) < 1e-12:
        return float(np.exp(logs[0])), float(np.exp(logs[0]))
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    if count < FEWEST:
        half = quantile * float(np.std(logs, ddof=1)) / math.sqrt(count)
        return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))
    level = 1 - 2 * float(stats.norm.cdf(-quantile * math.sqrt(count / (count - 1))))
    interval = stats.bootstrap(
        (logs,), np.mean, confidence_level=level, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(np.exp(interval.low)), float(np.exp(interval.high))


def _flip_test(logs: FloatArray) -> float | None:
    """Return the p-value of the two-sided sign-flip permutation test of the mean log ratio.

    The test is exact up to 13 seeds and valid for any number of seeds and with ties. The smallest p-value that `n`
    seeds can give is 2 / 2**n (five seeds: 0.06, ten: 0.002).
    """
    if len(logs) < 2:
        return None
    from scipy import stats

    if np.abs(logs).max() < 1e-12:
        return 1.0
    test = stats.permutation_test(
        (logs, np.zeros_like(logs)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=RESAMPLES, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.pvalue)


def _sign_test(ratios: Sequence[tuple[float, str]]) -> float | None:
    """Return the p-value of the two-sided sign test for ratios of which some are bounds; None if a side is unknown."""
    from scipy import stats

    sides = [_side(*ratio) for ratio in ratios]
    if None in sides or len(sides) < 2:
        return None
    clear = [side for side in sides if side]
    return float(stats.binomtest(clear.count(1), len(clear)).pvalue) if clear else 1.0


def _side(value: float, bound: str) -> int | None:
    """Return 1 for faster, -1 for slower, 0 for equal, None if the bound leaves it open."""
    if bound == "<":
        return -1 if value <= 1 else None
    if bound == ">":
        return 1 if value >= 1 else None
    return int(np.sign(value - 1))
