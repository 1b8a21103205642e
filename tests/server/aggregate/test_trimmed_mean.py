"""The trimmed mean."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.server.aggregate import TrimmedMean


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12), st.floats(0, 0.49))
def test_equals_scipy(values: list[float], beta: float) -> None:
    reports = [make_report(f"c{i:02}", [value, -value], float(i + 1)) for i, value in enumerate(values)]
    weights, _ = TrimmedMean(beta).aggregate(make_setup(), make_state(), reports)
    wanted = stats.trim_mean(np.array(values), beta)
    assert weights == pytest.approx([wanted, -wanted], rel=1e-4, abs=1e-4)


def test_liars_up_to_the_share_have_no_say() -> None:
    reports = [make_report(f"c{i}", [1.0, 1.0], 1.0) for i in range(8)] + [make_report("liar", [1e30, -1e30], 1e9)]
    weights, _ = TrimmedMean(0.2).aggregate(make_setup(), make_state(), reports)
    assert weights.tolist() == [1.0, 1.0]
