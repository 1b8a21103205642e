"""Robust aggregation: median, trimmed mean and Krum."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.server.aggregate import Krum, Median, TrimmedMean


def test_a_minority_cannot_move_the_model_beyond_the_others() -> None:
    honest = [make_report(f"h{i}", [1.0 + i, -1.0 - i], 1.0) for i in range(3)]
    liars = [make_report(f"l{i}", [1e30, 1e30], 1e9) for i in range(2)]
    weights, _ = Median().aggregate(make_setup(), make_state(), [*honest, *liars])
    assert weights.tolist() == [3.0, -1.0]


def test_an_even_number_takes_the_middle_between_two() -> None:
    state = make_state(weights=np.array([10.0, 0.0], dtype=np.float32))
    weights, _ = Median().aggregate(
        make_setup(), state, [make_report("a", [1.0, 0.0], 9.0), make_report("b", [2.0, 4.0], 1.0)]
    )
    assert weights == pytest.approx([11.5, 2.0])


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


def test_an_outlier_is_never_chosen() -> None:
    reports = [make_report(f"c{i}", [1.0 + 0.1 * i, 0.0], 1.0) for i in range(6)]
    for far in (-50.0, 1e6):
        weights, _ = Krum().aggregate(make_setup(), make_state(), [make_report("a", [far, far], 1e9), *reports])
        assert 1.0 <= weights[0] <= 1.5
        assert weights[1] == 0.0


def test_multi_krum_averages_the_best_by_their_samples() -> None:
    near = [make_report("a", [1.0, 0.0], 3.0), make_report("b", [2.0, 0.0], 1.0)]
    far = [make_report("c", [90.0, 0.0], 1.0), make_report("d", [500.0, 0.0], 1.0)]
    weights, _ = Krum(malicious=0.25, keep=2).aggregate(make_setup(), make_state(), [*far, *near])
    assert weights.tolist() == [1.25, 0.0]


def test_one_and_two_reports_are_enough() -> None:
    weights, _ = Krum().aggregate(make_setup(), make_state(), [make_report("a", [1.0, 2.0], 1.0)])
    assert weights.tolist() == [1.0, 2.0]
    pair = [make_report("b", [5.0, 5.0], 1.0), make_report("a", [1.0, 2.0], 1.0)]
    assert Krum().aggregate(make_setup(), make_state(), pair)[0].tolist() == [1.0, 2.0]
