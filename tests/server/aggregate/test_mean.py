"""The weighted mean."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_report, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.core.types import ClientReport, ServerState
from fedbalancer.server.aggregate import WeightedMean

values = st.floats(-100, 100, width=32)


@st.composite
def rounds(draw: Callable[..., Any]) -> tuple[ServerState, list[ClientReport]]:
    size, count = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    vectors = draw(arrays(np.float32, (count + 1, size), elements=values))
    weights = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    reports = [make_report(f"c{i}", vectors[i].tolist(), float(weights[i])) for i in range(count)]
    return make_state(weights=vectors[-1]), reports


@given(rounds())
def test_equals_the_formula_in_double_precision(world: tuple[ServerState, list[ClientReport]]) -> None:
    state, reports = world
    with Unchanged(state, reports):
        found, remembered = WeightedMean().aggregate(make_setup(), state, reports)
    assert remembered is None
    clients = np.array([report.update for report in reports], dtype=np.float64) + state.weights
    wanted = np.average(clients, axis=0, weights=[report.weight for report in reports])
    assert found.dtype == np.float32
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-4)


@given(rounds(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_byte(world: tuple[ServerState, list[ClientReport]], random: Any) -> None:
    state, reports = world
    shuffled = random.sample(reports, len(reports))
    policy = WeightedMean()
    first, second = (policy.aggregate(make_setup(), state, order)[0] for order in (reports, shuffled))
    assert first.tobytes() == second.tobytes()


def test_clients_count_by_their_samples_and_not_by_their_epochs() -> None:
    reports = [make_report("a", [1.0, 0.0], 30.0), make_report("b", [0.0, 4.0], 10.0)]
    state = make_state(weights=np.array([1.0, 2.0], dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, reports)[0].tolist() == [1.75, 3.0]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_arrival_does_not_matter_even_where_rounding_does(order: tuple[int, ...]) -> None:
    reports = [make_report("a", [2.0**60], 1.0), make_report("b", [1.0], 1.0), make_report("c", [-(2.0**60)], 1.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, [reports[i] for i in order])[0].tolist() == [0.0]


def test_weighs_in_double_precision() -> None:
    reports = [make_report("a", [1 + 2.0**-23], 3.0), make_report("b", [-1.0], 3.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, reports)[0].tolist() == [2.0**-24]


def test_sums_in_double_precision() -> None:
    big = [make_report("a", [2.0**25], 1.0), make_report("b", [1.0], 1.0), make_report("c", [-(2.0**25)], 1.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, big)[0].tolist() == [np.float32(1 / 3)]
