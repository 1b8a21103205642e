"""Structured updates of low rank."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbalancer.client.compress import LowRank
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Layout, Weights

FEMNIST = Layout(
    [
        ("conv1.weight", (32, 1, 5, 5)),
        ("conv1.bias", (32,)),
        ("conv2.weight", (64, 32, 5, 5)),
        ("conv2.bias", (64,)),
        ("dense.weight", (2048, 3136)),
        ("dense.bias", (2048,)),
        ("head.weight", (62, 2048)),
        ("head.bias", (62,)),
    ]
)


def normal(size: int, seed: int = 0) -> Weights:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def arrived(update: Weights, layout: Layout, rank: int, seed: int = 0) -> Weights:
    policy = LowRank(rank)
    return policy.decode(policy.encode(update, layout, seed, None)[0], layout, seed)


def projection(rows: int, rank: int, seed: int = 0) -> Weights:
    """A A', which is what becomes of an update that is the identity."""
    identity = np.eye(rows, dtype=np.float32)
    return arrived(identity.ravel(), Layout([("w", (rows, rows))]), rank, seed).reshape(rows, rows)


def test_a_matrix_of_d1_by_d2_sends_rank_times_d2_numbers() -> None:
    assert LowRank(7).encoded_bytes(Layout([("w", (40, 30))])) == 4 * 7 * 40
    assert LowRank(7).encoded_bytes(Layout([("w", (40, 5, 3, 2))])) == 4 * 7 * 40


def test_femnist_sends_what_the_authors_counted_without_the_inflation() -> None:
    authors = 441_200  # rank times the last axis, of kernels and biases alike
    biases, inflated_biases = 32 + 64 + 2048 + 62, 100 * (32 + 64 + 2048 + 62)
    first_kernel, inflated_kernel = 25 * 32, 100 * 32
    expected = authors - inflated_biases - inflated_kernel + biases + first_kernel
    assert LowRank(100).encoded_bytes(FEMNIST) == 4 * expected == 4 * 220_406


def test_vectors_and_tensors_that_would_not_shrink_arrive_as_they_are() -> None:
    layout = Layout((("b", (50,)), ("scale", ()), ("w", (9, 4)), ("k", (3, 2, 2))))
    update = normal(50 + 1 + 36 + 12)
    for rank in (4, 5, 100):
        assert LowRank(rank).encoded_bytes(layout) == 4 * len(update)
        assert arrived(update, layout, rank).tobytes() == update.tobytes()


@pytest.mark.parametrize(("rows", "rank"), [(20, 1), (20, 6), (33, 32), (101, 100), (64, 16)])
def test_what_arrives_is_the_orthogonal_projection_on_a_subspace_of_that_rank(rows: int, rank: int) -> None:
    found = projection(rows, rank)
    assert found == pytest.approx(found.T)
    assert found @ found == pytest.approx(found, abs=1e-5)
    assert np.linalg.matrix_rank(found) == rank == pytest.approx(np.trace(found), rel=1e-5)


def test_the_error_is_the_distance_to_what_the_random_factor_can_make() -> None:
    units, rows, rank = 12, 30, 8
    values, vectors = np.linalg.eigh(projection(rows, rank, seed=5).astype(np.float64))
    factor = vectors[:, values > 0.5]
    update = normal(units * rows)
    target = update.reshape(units, rows).T.astype(np.float64)
    solution, distance, *_ = np.linalg.lstsq(factor, target)
    found = arrived(update, Layout([("w", (units, rows))]), rank, seed=5).reshape(units, rows).T
    assert found == pytest.approx(factor @ solution, abs=1e-5)
    assert ((found - target) ** 2).sum() == pytest.approx(distance.sum(), rel=1e-5)


def test_the_mean_over_seeds_is_the_update_cut_down_to_rank_over_rows() -> None:
    rows, rank, seeds = 10, 4, 2000
    found = np.array([projection(rows, rank, seed) for seed in range(seeds)], dtype=np.float64)
    error = (found.mean(axis=0) - rank / rows * np.eye(rows)) / np.maximum(found.std(axis=0) / math.sqrt(seeds), 1e-6)
    assert np.abs(error).max() < 4.5
    assert found.mean(axis=0).trace() == pytest.approx(rank, rel=1e-5)


def test_the_share_of_the_squared_length_that_is_left_is_rank_over_rows() -> None:
    units, rows, rank = 5, 40, 10
    update = normal(units * rows)
    shares = []
    for seed in range(400):
        found = arrived(update, Layout([("w", (units, rows))]), rank, seed)
        shares.append((found**2).sum() / (update**2).sum())
    spread = np.std(shares) / math.sqrt(len(shares))
    assert abs(np.mean(shares) - rank / rows) < 4.5 * spread < 0.02


def test_tensors_of_one_update_have_factors_of_their_own() -> None:
    layout = Layout((("one", (3, 20)), ("other", (3, 20))))
    update = np.tile(normal(60), 2)
    one, other = np.split(arrived(update, layout, 5), 2)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("rank", [0, -1, 2.5])
def test_a_rank_that_is_none_is_refused(rank: int) -> None:
    with pytest.raises(BadSetting, match=r"LowRank: rank = .* whole number >= 1"):
        LowRank(rank)
