"""Random rotations without padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from fedbalancer.client.compress.quantised import BLOCK, rotate, rotate_back
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Weights


def rotated(values: Weights, seed: int = 0) -> Weights:
    return rotate(values, stream(seed, "test"))


def matrix(size: int, seed: int = 0) -> Weights:
    return np.array([rotated(row, seed) for row in np.eye(size, dtype=np.float32)])


@given(st.integers(0, 300), st.integers(0, 1000))
def test_lengths_and_values_come_back(size: int, seed: int) -> None:
    values = stream(seed, "values").normal(size=size).astype(np.float32)
    there = rotated(values, seed)
    assert there.shape == values.shape
    assert np.linalg.norm(there) == pytest.approx(np.linalg.norm(values), rel=1e-5)
    assert rotate_back(there, stream(seed, "test")) == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 21])
def test_it_is_an_orthogonal_matrix(size: int) -> None:
    found = matrix(size)
    assert found @ found.T == pytest.approx(np.eye(size), abs=1e-6)


def test_a_power_of_two_is_signs_and_one_hadamard_matrix() -> None:
    found = matrix(16, seed=3)
    signs = np.sign(found[:, 0])
    assert found == pytest.approx(signs[:, None] * hadamard(16) / 4)
    assert {-1.0, 1.0} == set(signs.tolist())


def test_a_spike_spreads_over_a_whole_block() -> None:
    values = np.zeros(3 * BLOCK, dtype=np.float32)
    values[5] = 1
    there = np.abs(rotated(values))
    assert sorted(set(there.tolist())) == [0, 1 / 64]
    assert np.count_nonzero(there) == BLOCK == 64**2


@pytest.mark.parametrize("size", [BLOCK + 1, 2 * BLOCK - 1, 3000])
def test_no_value_of_a_vector_of_any_length_is_left_out(size: int) -> None:
    for place in (0, size // 2, size - 1):
        values = np.zeros(size, dtype=np.float32)
        values[place] = 1
        assert np.abs(rotated(values)).max() < 0.1


def test_every_seed_is_another_rotation_and_nothing_given_is_changed() -> None:
    values = np.ones(100, dtype=np.float32)
    assert not np.array_equal(rotated(values, 0), rotated(values, 1))
    assert values.tolist() == [1] * 100
