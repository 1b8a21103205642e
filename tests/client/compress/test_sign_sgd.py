"""Updates as signs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbalancer.client.compress import SignSGD
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Layout, Weights
from fedbalancer.methods.table import method
from fedbalancer.server.aggregate import MajorityVote

LAYOUT = Layout((("w", (5, 7)), ("b", (4,))))


def arrived(update: Weights, seed: int = 0) -> Weights:
    policy = SignSGD()
    return policy.decode(policy.encode(update, LAYOUT, seed, None)[0], LAYOUT, seed)


def test_one_bit_a_parameter_gives_the_signs() -> None:
    update = np.random.default_rng(0).normal(size=39).astype(np.float32)
    update[:3] = [1e-45, -1e-45, -3e38]
    assert SignSGD().encoded_bytes(LAYOUT) == 5 == -(-39 // 8)
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
