"""Structured updates with a random mask."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbalancer.client.compress import RandomMask
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Layout, Weights

LAYOUT = Layout((("w", (8, 4)), ("b", (8,))))
UPDATE = np.random.default_rng(0).normal(size=40).astype(np.float32)


def arrived(share: float, seed: int) -> Weights:
    policy = RandomMask(share)
    return policy.decode(policy.encode(UPDATE, LAYOUT, seed, None)[0], LAYOUT, seed)


@pytest.mark.parametrize(("share", "count"), [(0.25, 10), (0.01, 1), (0.13, 5), (1.0, 40)])
def test_a_share_of_the_values_travels_alone_and_arrives_unscaled(share: float, count: int) -> None:
    found = arrived(share, 0)
    assert RandomMask(share).encoded_bytes(LAYOUT) == 4 * count
    assert np.count_nonzero(found) == count
    assert found[found != 0].tolist() == UPDATE[found != 0].tolist()


def test_every_place_is_kept_as_often() -> None:
    seeds = 2000
    times = sum((arrived(0.25, seed) != 0).astype(int) for seed in range(seeds))
    assert np.abs(times / seeds - 0.25).max() < 4.5 * math.sqrt(0.25 * 0.75 / seeds)
    assert times.sum() == seeds * 10


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match="RandomMask: share = 0"):
        RandomMask(0)
