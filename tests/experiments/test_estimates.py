"""Prediction intervals from independent runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbalancer.experiments.estimates import estimate


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        values = np.exp(rng.normal(3.0, 0.4, 9))
        low, _, high, _ = estimate(values[:8].tolist(), 0.9).to_json().values()
        assert low is not None
        assert high is not None
        inside.append(low <= values[8] <= high)
    assert 0.86 < np.mean(inside) < 0.94


def test_runs_that_never_reach_a_target_widen_its_interval() -> None:
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(3.0, 0.4, 4000))
    limit = math.exp(3.2)
    censored = estimate([value if value <= limit else None for value in values], 0.9, limit)
    assert censored.median == pytest.approx(math.exp(3.0), rel=0.03)
    assert censored.low == pytest.approx(math.exp(3.0 - 1.645 * 0.4), rel=0.05)
    assert censored.high is None  # after the horizon
    assert censored.reached == pytest.approx(0.69, abs=0.03)
    assert estimate([None, None, 5.0], 0.9, 10.0).low is None
