"""Server optimisers: momentum, FedExP, Adam, Yogi and Adagrad."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_report, make_setup, make_state
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.server.aggregate import (
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedYogi,
    ServerMomentum,
    WeightedMean,
)
from fedbalancer.testing import check_policy

OPTIMISERS = [FedAdam(), FedYogi(), FedAdagrad(), ServerMomentum(), ExtrapolatedMomentum()]
REPORTS = [make_report("a", [1.0, -3.0], 3.0), make_report("b", [2.0, -5.0], 1.0)]


@pytest.mark.parametrize("policy", OPTIMISERS, ids=lambda policy: type(policy).__name__)
def test_keeps_the_contract(policy: Any) -> None:
    assert check_policy(policy) == "aggregate"


@pytest.mark.parametrize("policy", OPTIMISERS, ids=lambda policy: type(policy).__name__)
def test_a_step_goes_where_the_mean_update_points_and_changes_no_argument(policy: Any) -> None:
    state = make_state(aggregate=policy.init(make_setup()))
    with Unchanged(state, REPORTS):
        weights, own = policy.aggregate(make_setup(), state, REPORTS)
        again, _ = policy.aggregate(make_setup(), replace(state, weights=weights, aggregate=own), REPORTS)
    assert np.sign(weights).tolist() == [1.0, -1.0]
    assert (np.abs(again) > np.abs(weights)).all()


def test_momentum_of_0_at_rate_1_is_the_weighted_mean() -> None:
    policy = ServerMomentum(beta=0.0, eta=1.0)
    state = make_state(aggregate=policy.init(make_setup()))
    assert policy.aggregate(make_setup(), state, REPORTS)[0].tolist() == [1.25, -3.5]


def test_adagrad_steps_shrink() -> None:
    policy, state = FedAdagrad(), make_state(aggregate=FedAdagrad().init(make_setup()))
    moved = []
    for _ in range(4):
        weights, own = policy.aggregate(make_setup(), state, REPORTS)
        moved.append(float(np.abs(weights - state.weights).sum()))
        state = replace(state, weights=weights, aggregate=own)
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1]


def test_extrapolated_momentum_without_memory_is_fedexp_and_with_it_goes_on() -> None:
    state = make_state(aggregate=ExtrapolatedMomentum(0.0).init(make_setup()))
    reports = [make_report("a", [1.0, 0.0], 1.0), make_report("b", [0.0, 1.0], 1.0), make_report("c", [0.0, -1.0], 1.0)]
    alone, _ = ExtrapolatedMomentum(beta=0.0).aggregate(make_setup(), state, reports)
    assert np.array_equal(alone, FedExP().aggregate(make_setup(), state, reports)[0])
    policy = ExtrapolatedMomentum()
    weights, own = policy.aggregate(make_setup(), state, REPORTS)
    again, _ = policy.aggregate(make_setup(), replace(state, weights=weights, aggregate=own), REPORTS)
    assert (again - weights).tolist() == (1.5 * weights).tolist()


def step(*reports: tuple[list[float], float]) -> list[float]:
    inputs = [make_report(f"c{i}", update, weight) for i, (update, weight) in enumerate(reports)]
    state = make_state(weights=np.zeros(len(reports[0][0]), dtype=np.float32))
    with Unchanged(state, inputs):
        weights, own = FedExP().aggregate(make_setup(), state, inputs)
    assert own is None
    return [float(value) for value in weights]


def test_fedexp_keeps_the_contract() -> None:
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
    actual, _ = FedExP().aggregate(make_setup(), state, reports)
    least = np.finfo(np.float32).tiny  # smaller numbers are indistinguishable
    assert np.all(np.abs(actual) >= np.abs(mean) * (1 - 1e-6) - least)
    assert np.all(np.abs(actual) <= 2 * np.abs(mean) * (1 + 1e-6) + least)
    assert np.all(actual * mean >= 0)
