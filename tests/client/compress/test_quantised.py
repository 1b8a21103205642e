"""Compressors that send a few bits per value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from fedbalancer.client.compress import Quantised, SignSGD
from fedbalancer.client.compress.quantised import BLOCK, rotate, rotate_back
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, Layout, Weights
from fedbalancer.methods.modifiers import AUTO_BITS
from fedbalancer.methods.table import method
from fedbalancer.server.aggregate import MajorityVote


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


RNG = np.random.default_rng(0)
UPDATE = RNG.normal(size=48).astype(np.float32)
LAYOUT = Layout((("w", (8, 5)), ("b", (8,))))
SEEDS = 1000


def arrivals(policy: Quantised, update: Weights, layout: Layout, seeds: int = SEEDS) -> FloatArray:
    sent = ((policy.encode(update, layout, seed, None)[0], seed) for seed in range(seeds))
    return np.array([policy.decode(payload, layout, seed) for payload, seed in sent], dtype=np.float64)


def mean_error(policy: Quantised, update: Weights, seeds: int) -> float:
    found = arrivals(policy, update, Layout([("w", update.shape)]), seeds)
    return float(((found - update) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_tensor_takes_its_bits_and_two_ends(bits: int) -> None:
    shapes = [(2048, 3136), (32, 1, 5, 5), (62,), (7, 11)]
    layout = Layout((str(shape), shape) for shape in shapes)
    expected = sum(math.ceil((bits * math.prod(shape) + 2 * 32) / 8) for shape in shapes)
    assert Quantised(bits).encoded_bytes(layout) == Quantised(bits, rotate=False).encoded_bytes(layout) == expected


def test_a_share_of_every_tensor_takes_its_bits() -> None:
    assert (
        Quantised(2, share=0.1).encoded_bytes(Layout([("w", (50, 40)), ("b", (100,))]))
        == (200 * 2 + 10 * 2 + 128 + 4) // 8
    )


def test_tensors_that_would_grow_travel_as_they_are() -> None:
    layout = Layout((("scale", ()), ("b", (2,)), ("none", (0,))))
    update = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert Quantised().encoded_bytes(layout) == 12
    assert arrivals(Quantised(), update, layout, 1)[0].tolist() == update.tolist()
    assert Quantised(bits=1).encoded_bytes(Layout([("b", (3,))])) == 9


@pytest.mark.parametrize("policy", [
    Quantised(1), Quantised(1, rotate=False), Quantised(3), Quantised(8), Quantised(8, rotate=False),
    Quantised(2, share=0.25), Quantised(4, rotate=False, share=0.5),
], ids=str)  # fmt: skip
def test_the_mean_over_seeds_is_the_update(policy: Quantised) -> None:
    found = arrivals(policy, UPDATE, LAYOUT)
    spread = found.std(axis=0) / math.sqrt(SEEDS)
    assert (np.abs(found.mean(axis=0) - UPDATE) < 4.5 * spread + 1e-5).all()
    along = found @ UPDATE / (UPDATE @ UPDATE)
    assert abs(along.mean() - 1) < 4.5 * along.std() / math.sqrt(SEEDS) + 1e-5 < 0.15


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_the_error_of_rounding_is_that_of_the_formula(bits: int) -> None:
    found = arrivals(Quantised(bits, rotate=False), UPDATE, Layout([("w", (48,))]))
    low, high = float(UPDATE.min()), float(UPDATE.max())
    step = (high - low) / (2**bits - 1)
    up = np.modf((UPDATE.astype(np.float64) - low) / step)[0]
    errors = ((found - UPDATE) ** 2).sum(axis=1)
    expected = (up * (1 - up)).sum() * step**2
    assert expected <= len(UPDATE) * step**2 / 4
    assert abs(errors.mean() - expected) < 4.5 * errors.std() / math.sqrt(SEEDS)
    assert np.abs(found - UPDATE).max() <= step * 1.00001
    levels = (found - low) / step
    assert levels == pytest.approx(levels.round(), abs=1e-4)
    assert levels.round().max() == 2**bits - 1


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("shape", ["dense", "spiky", "one"])
def test_the_error_after_a_rotation_is_within_the_bound_of_suresh_et_al(bits: int, shape: str) -> None:
    size = 1024
    update = np.random.default_rng(1).normal(size=size).astype(np.float32)
    update *= {"dense": 1.0, "spiky": 0.01, "one": 0.0}[shape]
    update[17] += 10
    bound = (2 * math.log(size) + 2) / (2**bits - 1) ** 2 * float((update**2).sum())
    assert mean_error(Quantised(bits), update, 200) <= bound


def test_rotating_pays_where_a_few_values_are_large() -> None:
    update = 0.01 * np.random.default_rng(1).normal(size=4096).astype(np.float32)
    update[[3, 1000, 4000]] = [2, -3, 4]
    assert mean_error(Quantised(4), update, 40) < 0.2 * mean_error(Quantised(4, rotate=False), update, 40)


@pytest.mark.parametrize("rotate", [True, False])
def test_equal_values_arrive_as_they_are(rotate: bool) -> None:
    update = np.full(100, 0.3, dtype=np.float32)
    policy = Quantised(1, rotate=False)
    assert arrivals(policy, update, Layout([("w", (100,))]), 1)[0].tolist() == update.tolist()
    nothing = np.zeros(100, dtype=np.float32)
    assert not arrivals(Quantised(2, rotate), nothing, Layout([("w", (100,))]), 1).any()


@pytest.mark.parametrize("rotate", [True, False])
def test_the_smallest_differences_do_no_harm(rotate: bool) -> None:
    update = np.array([1e-45, 0, 2e-45, 0, 0, 1e-44, 0, 0, 0, 0], dtype=np.float32)
    found = arrivals(Quantised(4, rotate), update, Layout([("w", (10,))]), 20)
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 1e-43


@pytest.mark.parametrize("bits", [0, 9, 1.5])
def test_bits_that_are_none_are_refused(bits: int) -> None:
    with pytest.raises(BadSetting, match=r"Quantised: bits = .* >= 1 and <= 8"):
        Quantised(bits)
    with pytest.raises(BadSetting, match="Quantised: share = 0"):
        Quantised(share=0)


LAYOUT_SIGN_SGD = Layout((("w", (5, 7)), ("b", (4,))))


def arrived(update: Weights, seed: int = 0) -> Weights:
    policy = SignSGD()
    return policy.decode(policy.encode(update, LAYOUT_SIGN_SGD, seed, None)[0], LAYOUT_SIGN_SGD, seed)


def test_one_bit_a_parameter_gives_the_signs() -> None:
    update = np.random.default_rng(0).normal(size=39).astype(np.float32)
    update[:3] = [1e-45, -1e-45, -3e38]
    assert SignSGD().encoded_bytes(LAYOUT_SIGN_SGD) == 5 == -(-39 // 8)
    assert arrived(update).tolist() == np.sign(update).tolist()


def test_zeros_vote_at_random_and_not_for_one_side() -> None:
    update = np.array([0.0, -0.0, 2.0] * 13, dtype=np.float32)
    found = np.array([arrived(update, seed) for seed in range(1000)])
    assert set(found.ravel().tolist()) == {-1, 1}
    zeros = found[:, update == 0]
    assert np.abs(zeros.mean(axis=0)).max() < 4.5 / math.sqrt(1000)
    assert (found[:, update > 0] == 1).all()


def test_votes_are_refused_by_what_would_take_them_for_changes() -> None:
    assert method("fedavg+1t", compress=SignSGD(), aggregate=MajorityVote()).compress == SignSGD()
    with pytest.raises(BadSetting, match=r"SignSGD sends votes.*not WeightedMean"):
        method("fedavg+1t", compress=SignSGD())


def test_the_bits_of_auto_are_near_the_best_number_for_every_link() -> None:
    """A round in which sending 32 bits takes the share u lasts 1 - u + u b / 32; noise costs at most 1 + error."""
    layout = Layout([("w", (100, 400)), ("b", (400,))])
    shares = np.linspace(0.05, 0.95, 19)
    for values in (np.random.default_rng(0).normal(size=40400), np.random.default_rng(0).standard_t(3, size=40400)):
        update = values.astype(np.float32)
        costs = {}
        for bits in range(1, 9):
            decoded = Quantised(bits).decode(Quantised(bits).encode(update, layout, 0, None)[0], layout, 0)
            error = float(((decoded - update) ** 2).sum() / (update**2).sum())
            costs[bits] = (1 - shares + shares * bits / 32) * (1 + error)
        best = np.min(list(costs.values()), axis=0)
        worst_ratio = {bits: float((cost / best).max()) for bits, cost in costs.items()}
        assert worst_ratio[AUTO_BITS] < 1.06
        assert min(worst_ratio, key=lambda bits: worst_ratio[bits]) == AUTO_BITS
