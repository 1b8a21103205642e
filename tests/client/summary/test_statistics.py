"""Statistics of losses, with and without noise."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.summary import LossesBySteps, LossStatistics
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import STEP_BINS, FloatArray, IndexArray, Summary, TrainResult
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

NOISY = ("loss_low", "loss_high", "loss_sum", "over_count", "over_sumsq")
LOSSES = np.array([0.2, 1.0, 3.0, 0.5, 2.0])
SEEN = np.array([1, 3])


def summarize(policy: LossStatistics, losses: FloatArray, seen: IndexArray, seed: int = 0, **order: Any) -> Summary:
    with Unchanged(losses, seen):
        return policy.summarize(losses, seen, 1.5, make_order(**order), np.random.default_rng(seed))


@given(st.data())
def test_without_noise_every_statistic_is_exact(data: st.DataObject) -> None:
    losses = np.array(data.draw(st.lists(st.floats(0, 10), min_size=1, max_size=30)))
    seen = np.array(sorted(data.draw(st.sets(st.integers(0, len(losses) - 1), min_size=1))))
    threshold = data.draw(st.floats(0, 10))
    found = LossStatistics().summarize(
        losses, seen, 1.5, make_order(loss_threshold=threshold), np.random.default_rng(0)
    )
    over = [loss for loss in losses if loss >= threshold]
    assert found.loss_low == min(losses)
    assert found.loss_high == pytest.approx(np.quantile(losses, 0.8))
    assert found.loss_sum == pytest.approx(sum(losses[i] for i in seen))
    assert found.loss_count == found.trained == len(seen)
    assert found.over_count == len(over)
    assert found.over_sumsq == pytest.approx(sum(loss**2 for loss in over))
    assert found.batch_s == 1.5


def test_utility_over_the_selected_samples_or_over_all() -> None:
    selected = summarize(LossStatistics(), LOSSES, SEEN)
    everything = summarize(LossStatistics(utility_samples="all"), LOSSES, SEEN)
    assert (selected.loss_sum, selected.loss_count) == (1.5, 2.0)
    assert everything.loss_sum == pytest.approx(6.7)
    assert everything.loss_count == 5.0
    assert selected.trained == everything.trained == 2


def test_samples_never_looked_at_are_taken_to_be_like_the_others() -> None:
    """Else the utility of a client would grow with what it has seen, and with it its chance to see more."""
    known = summarize(LossStatistics(utility_samples="all"), LOSSES, SEEN, loss_threshold=0.9)
    more = np.append(LOSSES, np.full(len(LOSSES), math.nan))
    found = summarize(LossStatistics(utility_samples="all"), more, SEEN, loss_threshold=0.9)
    assert found == replace(known, over_count=2 * known.over_count, over_sumsq=2 * known.over_sumsq)
    oort = LossStatistics(over_samples="selected")
    assert summarize(oort, more, SEEN, loss_threshold=0.9) == summarize(oort, LOSSES, SEEN, loss_threshold=0.9)


def test_a_loss_equal_to_the_threshold_is_over() -> None:
    assert summarize(LossStatistics(), LOSSES, SEEN, loss_threshold=1.0).over_count == 3


@pytest.mark.parametrize("scope", ["selected", "all"])
def test_noise_changes_every_loss_statistic_and_nothing_else(scope: Any) -> None:
    exact = asdict(summarize(LossStatistics(0.0, scope), LOSSES, SEEN))
    noisy = asdict(summarize(LossStatistics(0.1, scope), LOSSES, SEEN))
    assert {name for name in exact if exact[name] != noisy[name]} == set(NOISY)


def test_noise_is_normal_with_the_given_deviation_and_independent() -> None:
    exact = asdict(summarize(LossStatistics(), LOSSES, SEEN))
    rng = np.random.default_rng(3)
    policy, order = LossStatistics(0.5), make_order()
    released = [asdict(policy.summarize(LOSSES, SEEN, 1.5, order, rng)) for _ in range(2000)]
    noise = np.array([[row[name] - exact[name] for name in NOISY] for row in released])
    assert noise.mean(axis=0) == pytest.approx(np.zeros(5), abs=4 * 0.5 / math.sqrt(2000))
    assert noise.std(axis=0) == pytest.approx(np.full(5, 0.5), rel=0.05)
    assert np.corrcoef(noise.T) == pytest.approx(np.eye(5), abs=0.07)


def test_noise_depends_on_the_generator_only() -> None:
    policy = LossStatistics(0.5)
    assert summarize(policy, LOSSES, SEEN, seed=1) == summarize(policy, LOSSES, SEEN, seed=1)
    assert summarize(policy, LOSSES, SEEN, seed=1) != summarize(policy, LOSSES, SEEN, seed=2)


@pytest.mark.parametrize("wrong", [{"loss_clip": 0.0}, {"loss_clip": 101.0}, {"noise_factor": 1e300}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        LossStatistics(**{"loss_clip": 5.0, **wrong})


def test_statistics_beyond_the_clip_and_the_noise_are_said() -> None:
    policy = LossStatistics(2.0, utility_samples="all", loss_clip=5.0)
    told = summarize(policy, LOSSES, SEEN)
    assert policy.statistics_fault(told, 5) is None
    assert "loss_high 26, which is from -20 to 25" in str(policy.statistics_fault(replace(told, loss_high=26.0), 5))
    assert "over_count 26" in str(policy.statistics_fault(replace(told, over_count=26.0), 5))
    assert LossStatistics().statistics_fault(replace(told, loss_high=26.0), 5) is None


def test_over_samples_selected_looks_at_the_samples_trained_now_only() -> None:
    losses, seen = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 3])
    order = make_order(loss_threshold=1.5)
    known = LossStatistics().summarize(losses, seen, 1.0, order, stream(0, "noise"))
    oort = LossStatistics(over_samples="selected").summarize(losses, seen, 1.0, order, stream(0, "noise"))
    assert (known.over_count, known.over_sumsq) == (3.0, 29.0)
    assert (oort.over_count, oort.over_sumsq) == (1.0, 16.0)


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
    assert made.client.release().noise_multiplier == 0
    with pytest.raises(BadSetting, match="no epsilon follows"):
        method("canter[deadline=LearnedWork,summary=LossesBySteps(noise_factor=1,loss_clip=5)]")
    assert LossesBySteps(0.5) != LossStatistics(0.5)
