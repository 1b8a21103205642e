"""What a client tells of how its losses fall while it trains."""

from __future__ import annotations

import numpy as np
import pytest

from fedbalancer.client.summary import LossesBySteps, LossStatistics, release_of
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import STEP_BINS, TrainResult
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

RNG = np.random.default_rng(0)


def test_keeps_the_contract() -> None:
    assert check_policy(LossesBySteps()) == "summary"


def test_counts_sums_and_squares_by_the_steps_before() -> None:
    steps, losses = np.array([0, 0, 1, 2, 3, 6, 7]), np.array([4.0, 6.0, 3.0, 5.0, 2.0, 1.0, 0.5])
    trained = TrainResult("ann", np.zeros(0, np.float32), np.arange(7), losses, steps)
    counts, sums, squares = np.array(LossesBySteps().by_steps(trained, RNG)).reshape(3, STEP_BINS)
    assert counts.tolist() == [2, 2, 2, 1, *[0] * 8]
    assert sums.tolist() == [10, 8, 3, 0.5, *[0] * 8]
    assert squares.tolist() == [52, 34, 5, 0.25, *[0] * 8]


def test_a_training_whose_steps_nobody_counted_tells_nothing() -> None:
    uncounted = TrainResult("ann", np.zeros(0, np.float32), np.arange(2), np.ones(2))
    assert LossesBySteps().by_steps(uncounted, RNG) == (0.0,) * (3 * STEP_BINS)


def test_noise_is_on_every_number() -> None:
    trained = TrainResult("ann", np.zeros(0, np.float32), np.arange(2), np.ones(2), np.arange(2))
    drawn = np.array([LossesBySteps(0.5).by_steps(trained, RNG) for _ in range(2000)])
    assert np.abs(drawn.std(axis=0) - 0.5).max() < 0.05
    assert np.abs(drawn.mean(axis=0) - LossesBySteps().by_steps(trained, RNG)).max() < 0.06


def test_what_cannot_be_it_is_told() -> None:
    policy = LossesBySteps()
    assert policy.fault((5.0,) * 36, 5) is None
    assert "36" in str(policy.fault((0.0,) * 35, 5))
    assert "finite" in str(policy.fault((np.nan, *(0.0,) * 35), 5))
    assert "count of 6" in str(policy.fault((6.0, *(0.0,) * 35), 5))
    assert "squares of 1e+16" in str(policy.fault((*(0.0,) * 35, 1e16), 5))
    assert LossesBySteps(0.5).fault((9.0, *(0.0,) * 35), 5) is None


def test_it_claims_no_privacy_and_keeps_the_other_numbers_of_the_summary() -> None:
    made = method("canter+learned[noise_factor=.5]")
    assert made.summary == LossesBySteps(0.5)
    assert release_of(made.client).noise_multiplier == 0
    with pytest.raises(BadSetting, match="no epsilon follows"):
        method("canter[deadline=LearnedWork,summary=LossesBySteps(noise_factor=1,loss_clip=5)]")
    assert LossesBySteps(0.5) != LossStatistics(0.5)
