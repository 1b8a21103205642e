"""What all server optimisers promise beside giving what Flower gives (test_against_flower)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_report, make_setup, make_state

from fedbalancer.server.aggregate import ExtrapolatedMomentum, FedAdagrad, FedAdam, FedExP, FedYogi, ServerMomentum
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
