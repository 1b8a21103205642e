"""Sizes of clients: exact total, requested spread, within the limits; the seed decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.data.partition import lognormal_sizes


@given(
    clients=st.integers(1, 60), mean=st.integers(1, 40), extra=st.integers(0, 40), variation=st.floats(0, 4),
    seed=st.integers(0, 2**40),
)  # fmt: skip
def test_the_total_and_the_limits_are_exact(clients: int, mean: int, extra: int, variation: float, seed: int) -> None:
    samples, least, most = clients * mean + min(extra, clients), 1, 3 * mean + 1
    sizes = lognormal_sizes(clients, samples, variation, least=least, most=most, seed=seed)
    assert len(sizes) == clients
    assert sizes.sum() == samples
    assert sizes.min() >= least
    assert sizes.max() <= most


@pytest.mark.parametrize("variation", [0.0, 0.39, 1.85])
def test_the_spread_is_the_requested_one(variation: float) -> None:
    sizes = lognormal_sizes(800, 32_000, variation, least=5, most=1000)
    assert sizes.std() / sizes.mean() == pytest.approx(variation, abs=0.01)


def test_sizes_of_no_spread_are_equal() -> None:
    assert lognormal_sizes(7, 70, 0).tolist() == [10] * 7


def test_a_larger_spread_keeps_the_order_of_the_clients() -> None:
    even, uneven = (lognormal_sizes(50, 5000, variation) for variation in (0.3, 1.5))
    assert (np.diff(even[np.argsort(uneven)]) >= -1).all()  # up to the rounding


def test_the_seed_decides() -> None:
    assert np.array_equal(lognormal_sizes(20, 500, 1, seed=3), lognormal_sizes(20, 500, 1, seed=3))
    assert not np.array_equal(lognormal_sizes(20, 500, 1, seed=3), lognormal_sizes(20, 500, 1, seed=4))


@pytest.mark.parametrize(
    ("clients", "samples", "variation", "limits"),
    [
        (0, 10, 1.0, {}), (5, 4, 1.0, {}), (5, 100, 1.0, {"most": 19}), (5, 100, 1.0, {"least": 21}),
        (5, 100, -1.0, {}), (5, 100, float("nan"), {}), (5, 100, 1.0, {"least": 0}), (5, 100, 1.0, {"seed": -1}),
    ],
)  # fmt: skip
def test_impossible_requests_are_refused(clients: int, samples: int, variation: float, limits: dict[str, int]) -> None:
    with pytest.raises(BadSetting):
        lognormal_sizes(clients, samples, variation, **limits)
