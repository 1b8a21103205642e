"""Sketched updates: random subsets, unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from fedbalancer.client.compress import Subsample
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FloatArray, Layout

LAYOUT = Layout((("w", (8, 4)), ("b", (9,))))
UPDATE = np.random.default_rng(0).normal(size=41).astype(np.float32)
SEEDS = 2000


def arrivals(share: float) -> FloatArray:
    policy = Subsample(share)
    sent = ((policy.encode(UPDATE, LAYOUT, seed, None)[0], seed) for seed in range(SEEDS))
    return np.array([policy.decode(payload, LAYOUT, seed) for payload, seed in sent], dtype=np.float64)


@pytest.mark.parametrize(("share", "count"), [(0.25, 10), (0.06, 2), (0.9, 37)])
def test_the_mean_is_the_update_and_the_error_is_that_of_the_formula(share: float, count: int) -> None:
    found = arrivals(share)
    assert Subsample(share).encoded_bytes(LAYOUT) == 4 * count
    assert (np.count_nonzero(found, axis=1) == count).all()
    score = (found.mean(axis=0) - UPDATE) / (found.std(axis=0) / np.sqrt(SEEDS))
    assert np.abs(score).max() < 4.5
    along = found @ UPDATE / (UPDATE @ UPDATE)  # all values at once, so that a wrong factor shows
    assert abs(along.mean() - 1) < 4.5 * along.std() / np.sqrt(SEEDS) < 0.12
    errors = ((found - UPDATE) ** 2).sum(axis=1)
    expected = (len(UPDATE) / count - 1) * (UPDATE**2).sum()
    assert abs(errors.mean() - expected) < 4.5 * errors.std() / np.sqrt(SEEDS)


def test_everything_kept_is_everything() -> None:
    policy = Subsample(1.0)
    assert policy.decode(policy.encode(UPDATE, LAYOUT, 3, None)[0], LAYOUT, 3).tobytes() == UPDATE.tobytes()


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"Subsample: share = 1\.5"):
        Subsample(1.5)
