"""Samples whose labels seem wrong are left out, by a rule read from the client's own losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from fedbalancer.client.samples import UNIFORM, OverThreshold, Trimmed, split_losses
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

ENOUGH_S, LITTLE_S = 1e6, 20.0


def select(losses: FloatArray, deadline_s: float = ENOUGH_S, threshold: float = 0.0, seed: int = 0) -> IndexArray:
    order = make_order(deadline_s=deadline_s, loss_threshold=threshold)
    with Unchanged(losses):
        found = Trimmed(0.75).select(len(losses), losses, 1.0, order, np.random.default_rng(seed))
    assert found is not None
    return found


def two_groups(size: int, wrong: float, seed: int = 0) -> tuple[FloatArray, set[int]]:
    """Low losses, and high ones of the samples whose labels are wrong."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.permutation(size) < round(wrong * size)
    return np.where(is_wrong, rng.normal(3.0, 0.4, size), rng.exponential(0.3, size)), set(np.flatnonzero(is_wrong))


def test_it_keeps_the_contract_of_its_slot() -> None:
    check_policy(Trimmed())
    check_policy(Trimmed(0.75))


@pytest.mark.parametrize("size", [40, 300])
@pytest.mark.parametrize("wrong", [0.1, 0.2, 0.4])
def test_most_samples_of_wrong_labels_are_left_out_and_hardly_any_other(size: int, wrong: float) -> None:
    losses, bad = two_groups(size, wrong)
    rounds = [set(select(losses, seed=seed).tolist()) for seed in range(20)]
    assert np.mean([len(chosen & bad) for chosen in rounds]) <= 0.35 * len(bad)
    assert np.mean([len(chosen - bad) for chosen in rounds]) >= 0.97 * (size - len(bad))


def test_each_suspect_comes_back_in_some_round_and_is_away_in_most() -> None:
    losses, bad = two_groups(100, 0.2)
    rounds = [set(select(losses, seed=seed).tolist()) for seed in range(100)]
    times = {sample: sum(sample in chosen for chosen in rounds) for sample in bad}
    assert all(0 < count < 50 for count in times.values())


@pytest.mark.parametrize(
    "shape", [stats.norm(3, 0.5), stats.expon(), stats.lognorm(0.5)], ids=["normal", "exponential", "lognormal"]
)
@pytest.mark.parametrize("deadline_s", [LITTLE_S, ENOUGH_S])
def test_one_group_of_losses_is_selected_from_as_without_the_rule(shape: Any, deadline_s: float) -> None:
    losses = shape.ppf((np.arange(200) + 0.5) / 200)
    order = make_order(deadline_s=deadline_s, loss_threshold=0.6)
    usual = OverThreshold(0.75).select(len(losses), losses, 1.0, order, np.random.default_rng(0))
    assert usual is not None
    assert split_losses(losses)[1] < UNIFORM
    assert select(losses, deadline_s, 0.6).tolist() == usual.tolist()


def test_the_threshold_selects_among_those_that_are_left() -> None:
    losses, bad = two_groups(300, 0.2)
    chosen = select(losses, LITTLE_S, threshold=0.5)
    kept = np.array(sorted(set(range(300)) - bad))
    over = np.count_nonzero(losses[kept] >= 0.5)
    assert over <= len(chosen) <= over + 0.35 * len(bad)
    assert np.count_nonzero(losses[chosen] < 0.5) == int(len(chosen) * 0.25 + 1e-9)


def test_the_larger_group_is_never_left_out() -> None:
    losses, bad = two_groups(100, 0.7)
    assert select(losses).tolist() == list(range(100))
    assert len(bad) == 70


def test_a_loss_that_nobody_knows_is_no_suspect() -> None:
    losses, _ = two_groups(100, 0.2)
    losses[::5] = np.nan
    assert set(range(0, 100, 5)) <= set(select(losses).tolist())


@given(arrays.arrays(np.float64, st.integers(2, 40), elements=st.floats(0, 50)))
def test_the_split_explains_most_of_all_splits(losses: FloatArray) -> None:
    lowest, explained = split_losses(losses)
    total = np.square(losses - losses.mean()).sum()
    if losses.min() == losses.max() or total == 0:
        return
    lower, upper = losses[losses < lowest], losses[losses >= lowest]
    within = sum(np.square(group - group.mean()).sum() for group in (lower, upper) if len(group))
    assert explained == pytest.approx(1 - within / total, abs=1e-6)
    for border in np.unique(losses)[1:]:
        groups = losses[losses < border], losses[losses >= border]
        assert explained >= 1 - sum(np.square(g - g.mean()).sum() for g in groups) / total - 1e-6


def test_the_modifier_takes_the_place_of_algorithm_1_and_of_every_sample() -> None:
    assert method("canter+trimmed").samples == Trimmed(0.75)
    assert method("fedbalancer+trimmed[p=.9]").samples == Trimmed(0.9)
    assert method("fedavg+1t+trimmed").samples == Trimmed(1.0)
    assert method("canter+trimmed").with_policies(samples=OverThreshold(0.75)).server == method("canter").server


@pytest.mark.parametrize("base", ["sampleselection", "oortbalancer", "fedbalancer+randomsamples"])
def test_a_selection_of_another_rule_is_refused(base: str) -> None:
    with pytest.raises(BadSetting, match="selects samples by another rule"):
        method(f"{base}+trimmed")
