"""A mean over seeds, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation (ddof 1) and the 95 % t-interval of the mean; None where it is undefined."""

    mean: float | None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The estimate from one value per seed: nothing without a value, only a mean for one seed."""
        if not values:
            return cls(None)
        mean = float(np.mean(values))
        if len(values) == 1:
            return cls(mean)
        from scipy import stats

        std = float(np.std(values, ddof=1))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * std / len(values) ** 0.5
        return cls(mean, std, mean - half, mean + half)
