"""FedExP: how long the server's step is."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Unchanged, make_report, make_setup, make_state
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.server.aggregate import FedExP, WeightedMean
from fedbalancer.testing import check_policy


def step(*reports: tuple[list[float], float]) -> list[float]:
    made = [make_report(f"c{i}", update, weight) for i, (update, weight) in enumerate(reports)]
    state = make_state(weights=np.zeros(len(reports[0][0]), dtype=np.float32))
    with Unchanged(state, made):
        weights, own = FedExP().aggregate(make_setup(), state, made)
    assert own is None
    return [float(value) for value in weights]


def test_keeps_the_contract() -> None:
    assert check_policy(FedExP()) == "aggregate"


def test_clients_that_agree_take_the_mean() -> None:
    assert step(([2.0, 0.0], 1.0), ([2.0, 0.0], 3.0)) == [2.0, 0.0]
    assert step(([1.0, 2.0], 5.0)) == [1.0, 2.0]


def test_six_clients_at_right_angles_take_three_means() -> None:
    reports = [([1.0 if place == i else 0.0 for place in range(6)], 1.0) for i in range(6)]
    assert step(*reports) == pytest.approx([0.5] * 6)


def test_clients_that_pull_against_each_other_are_bounded() -> None:
    assert step(([1.0], 1.0), ([-1.0], 1.0)) == [0.0]
    assert step(([1.0], 1.0), ([-0.99], 1.0), ([1.0], 1.0), ([-0.99], 1.0)) == pytest.approx([0.01])
    heavy = step(([1.0, 0.0], 1e6), ([0.0, 1.0], 1.0), ([0.0, -1.0], 1.0))  # weights that amount to one client
    assert heavy == pytest.approx([1.0, 0.0], abs=1e-5)


@given(arrays(np.float32, (4, 3), elements=st.floats(-10, 10, width=32)))
@example(np.array([[1e-45, 1, 0], [1e-45, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=np.float32))  # half of it rounds to 0
def test_goes_where_the_mean_points_at_least_as_far_and_at_most_half_the_clients(updates: np.ndarray) -> None:
    reports = [make_report(f"c{i}", update.tolist(), 1.0) for i, update in enumerate(updates)]
    state = make_state(weights=np.zeros(3, dtype=np.float32))
    mean, _ = WeightedMean().aggregate(make_setup(), state, reports)
    found, _ = FedExP().aggregate(make_setup(), state, reports)
    least = np.finfo(np.float32).tiny  # numbers below it are no longer told apart by their size
    assert np.all(np.abs(found) >= np.abs(mean) * (1 - 1e-6) - least)
    assert np.all(np.abs(found) <= 2 * np.abs(mean) * (1 + 1e-6) + least)
    assert np.all(found * mean >= 0)
