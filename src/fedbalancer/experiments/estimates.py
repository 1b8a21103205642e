"""Prediction intervals of a value from independent runs, of which some may not have reached their target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.types import FloatArray


@dataclass(frozen=True)
class Estimate:
    """A predicted value. None: more than the horizon allows to say.

    Args:
        low: Lower end of the interval.
        median: The value that is exceeded in half of the cases.
        high: Upper end of the interval.
        reached: Share of the runs that reached the target.
    """

    low: float | None
    median: float | None
    high: float | None
    reached: float = 1.0

    def to_json(self) -> dict[str, float | None]:
        return {"low": self.low, "median": self.median, "high": self.high, "reached": self.reached}


def estimate(values: Sequence[float | None], level: float, most: float = math.inf) -> Estimate:
    """Return the prediction interval of a positive value from independent runs, on a logarithmic scale.

    A run that has not reached its target within `most` counts as a value above it: its logarithm is replaced by its
    expectation under the fitted normal distribution, until the fit no longer changes.

    Args:
        values: The values; None for a run that did not reach the target.
        level: Probability of the interval.
        most: Largest value that a run could have. Estimates above it are None.

    Example:
        >>> [round(value) for value in estimate([90.0, 100.0, 110.0], 0.9).to_json().values()]
        [71, 100, 140, 1]
        >>> estimate([90.0, None, None, None], 0.9, 200.0).median is None
        True
    """
    from scipy import stats

    logs = np.log([max(value, 1e-9) for value in values if value is not None])
    missing, count = len(values) - len(logs), len(values)
    share = len(logs) / count if count else 0.0
    if len(logs) < 2:
        return Estimate(None, None, None, share)
    mean, std = float(logs.mean()), float(logs.std(ddof=1))
    if missing:
        if not math.isfinite(most):
            return Estimate(None, None, None, share)
        mean, std = _fit_censored(logs, math.log(most), missing)
    half = float(stats.t.ppf((1 + level) / 2, max(len(logs) - 1, 1))) * std * math.sqrt(1 + 1 / count)
    ends = [math.exp(each) for each in (mean - half, mean, mean + half)]
    low, median, high = (each if each <= most * (1 + 1e-9) else None for each in ends)
    return Estimate(low, median, high, share)


def _fit_censored(logs: FloatArray, limit: float, missing: int, repeats: int = 200) -> tuple[float, float]:
    """Return mean and deviation of a normal distribution of which some values are only known to be above a limit."""
    from scipy import stats

    mean, std = float(logs.mean()), max(float(logs.std(ddof=1)), 1e-6)
    count = len(logs) + missing
    for _ in range(repeats):
        at = (limit - mean) / std
        hazard = float(np.exp(stats.norm.logpdf(at) - stats.norm.logsf(at)))
        above, spread = mean + std * hazard, std**2 * max(1 + at * hazard - hazard**2, 0.0)
        mean = (float(logs.sum()) + missing * above) / count
        variance = (float(((logs - mean) ** 2).sum()) + missing * (spread + (above - mean) ** 2)) / (count - 1)
        std = max(math.sqrt(variance), 1e-6)
    return mean, std


def plain_estimate(values: FloatArray, level: float) -> Estimate:
    """Return the prediction interval of a value from independent runs.

    Args:
        values: The values.
        level: Probability of the interval.
    """
    from scipy import stats

    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None, None, None, 0.0)
    spread = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    half = float(stats.t.ppf((1 + level) / 2, max(len(known) - 1, 1))) * spread * math.sqrt(1 + 1 / len(known))
    middle = float(known.mean())
    return Estimate(middle - half, middle, middle + half)
