"""Noisy histograms of losses."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_order, make_summary
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.summary import Histogram, SecAggHistogram
from fedbalancer.client.summary.histogram import clean_counts
from fedbalancer.client.summary.noise import MOST_NOISE
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FloatArray, Summary
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

EXACT = Histogram(noise_multiplier=0.0)
lists = st.lists(st.floats(0, 1e6), max_size=30)


def released(policy: Histogram, losses: FloatArray, seed: int = 0, **order: Any) -> Summary:
    seen = np.arange(len(losses))
    with Unchanged(losses, seen):
        return policy.summarize(losses, seen, 0.7, make_order(**order), np.random.default_rng(seed))


def test_keeps_the_contract() -> None:
    assert check_policy(Histogram()) == "summary"


@given(lists, st.floats(0, 1e6))
def test_a_sample_more_moves_the_release_by_a_distance_of_one_whatever_its_loss(losses: list[float], x: float) -> None:
    before, after = (np.array(released(EXACT, np.array(each)).released) for each in (losses, [*losses, x]))
    assert np.linalg.norm(after - before) == 1.0
    assert before.sum() == len(losses)


def test_nothing_but_the_noisy_counts_speaks_of_the_losses() -> None:
    found = released(Histogram(1.0), np.array([1.0, 4.0, 0.2]))
    assert replace(found, released=()) == Summary(0, 0, 0, 0, 0, 0, trained=3, batch_s=0.7)


def test_noise_is_normal_with_the_given_deviation_in_every_bin() -> None:
    losses, rng, order = np.array([0.3, 2.0]), np.random.default_rng(1), make_order()
    policy = Histogram(noise_multiplier=3.0)
    drawn = np.array([policy.summarize(losses, np.arange(2), 1.0, order, rng).released for _ in range(3000)])
    noise = drawn - np.array(released(EXACT, losses).released)
    assert np.abs(noise.mean(axis=0)).max() < 4.5 * 3.0 / math.sqrt(3000)
    assert noise.std(axis=0) == pytest.approx(np.full(64, 3.0), rel=0.07)


def test_samples_never_looked_at_count_nowhere() -> None:
    assert sum(released(EXACT, np.array([1.0, math.nan, 3.0])).released) == 2


def test_without_noise_the_statistics_are_those_of_the_losses_as_far_as_bins_tell() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.gamma(2.0, 0.4, size=300) for _ in range(20)]
    order = make_order(loss_threshold=0.5)
    read = EXACT.read([released(EXACT, losses) for losses in clients], order)
    everything = np.concatenate(clients)
    assert len({(each.loss_low, each.loss_high) for each in read}) == 1
    assert read[0].loss_low == pytest.approx(np.quantile(everything, 0.05), abs=0.02)
    assert read[0].loss_high == pytest.approx(np.quantile(everything, 0.8), abs=0.03)
    for losses, each in zip(clients, read, strict=True):
        over = losses[losses >= 0.5]
        assert each.loss_count == pytest.approx(300)
        assert each.loss_mean == pytest.approx(losses.mean(), rel=0.02)
        assert each.over_count == pytest.approx(len(over), rel=0.05, abs=5)
        assert each.over_sumsq == pytest.approx((over**2).sum(), rel=0.05)
        assert each.released == ()


def test_statistics_read_from_pure_noise_are_numbers_in_their_ranges() -> None:
    policy = Histogram(noise_multiplier=50.0)
    read = policy.read([released(policy, np.array([1.0]), seed) for seed in range(5)], make_order(loss_threshold=9.0))
    for each in read:
        assert 0 <= each.loss_low <= each.loss_high <= 5
        assert each.loss_count >= 1
        assert each.loss_sum >= 0
        assert 0 <= each.over_count <= each.loss_count
        assert 0 <= each.over_sumsq <= 25 * each.over_count


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=40))
def test_cleaned_counts_are_not_negative_and_keep_their_total(noisy: list[float]) -> None:
    found = clean_counts(np.array(noisy))
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(max(sum(noisy), 1.0), rel=1e-6, abs=1e-6)


def test_the_sums_of_a_round_have_the_mean_of_the_pooled_histogram() -> None:
    """The noise of single clients, cut at zero, would make every loss look high."""
    policy, rng = Histogram(noise_multiplier=7.0), np.random.default_rng(0)
    clients = [rng.gamma(1.0, 0.5, size=500) for _ in range(100)]
    read = policy.read([released(policy, losses, seed) for seed, losses in enumerate(clients)], make_order())
    mean = sum(each.loss_sum for each in read) / sum(each.loss_count for each in read)
    assert mean == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": -1.0}, {"noise_multiplier": 1e300}, {"clip": 0.0}, {"bins": 1}, {"low_quantile": 0.9}],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Histogram(**wrong)


@pytest.mark.parametrize(
    ("released", "words"),
    [
        ([0.0] * 63, "64 whole numbers"),
        ([math.nan] * 64, "64 whole numbers"),
        ([0.5] + [0.0] * 63, "64 whole numbers"),
        ([1e17, -1e17] + [0.0] * 62, "count of 1e[+]17"),
        ([0.0] * 63 + [1e6], "count of 1e[+]06 in one bin, which is from -71.1 to 101.1 with 30 samples"),
        ([-72.0] + [0.0] * 63, "count of -72"),
        ([0.0] * 60 + [100.0] * 4, "200 in the highest bins, which is from -100.551 to 130.551 with 30 samples"),
        ([20.0] * 64, "in the lowest bins"),
        ([-20.0] * 64, "in the lowest bins"),
    ],
)
def test_what_the_mechanism_cannot_produce_is_said(released: list[float], words: str) -> None:
    assert re.search(words, str(Histogram().fault(released, 30)))


@given(lists.filter(len), st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 7.11, 1e8]))
def test_what_it_produces_is_believed_and_read(losses: list[float], seed: int, noise: float) -> None:
    policy = Histogram(noise)
    told = released(policy, np.array(losses), seed)
    assert policy.fault(told.released, len(losses)) is None
    check_read(policy.read([told], make_order(loss_threshold=1.0)))


@given(st.lists(st.lists(st.integers(-(10**9), 10**9), min_size=64, max_size=64), min_size=1, max_size=4))
def test_reading_never_raises_even_what_the_check_would_refuse(rows: list[list[int]]) -> None:
    summaries = [make_summary(released=tuple(map(float, row))) for row in rows]
    check_read(Histogram(MOST_NOISE).read(summaries, make_order(loss_threshold=1.0)))


def check_read(found: list[Summary]) -> None:
    for each in found:
        assert 0 <= each.loss_low <= each.loss_high <= 5
        assert 0 <= each.loss_sum < math.inf
        assert 0 <= each.over_count <= each.loss_count * (1 + 1e-9)


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=64))
def test_any_finite_counts_can_be_cleaned(noisy: list[float]) -> None:
    found = clean_counts(np.array(noisy))
    assert (found >= 0).all()
    assert 0 < found.sum() < math.inf


LOSSES = [np.full(50, 0.5), np.full(50, 1.5), np.full(50, 2.5)]


def released_by(policy: SecAggHistogram, count: int, seed: int = 0) -> list[Summary]:
    rng = np.random.default_rng(seed)
    return [policy.summarize(losses, np.arange(50), 1.0, make_order(), rng) for losses in LOSSES[:count]]


def test_keeps_the_contract_with_shared_noise() -> None:
    assert check_policy(SecAggHistogram()) == "summary"


def test_the_least_cohort_adds_all_of_the_noise() -> None:
    policy, exact = SecAggHistogram(4.0, least=3), SecAggHistogram(0.0, least=3)
    truth = np.sum([each.released for each in released_by(exact, 3)], axis=0)
    sums = np.array([np.sum([each.released for each in released_by(policy, 3, seed)], axis=0) for seed in range(500)])
    assert (sums - truth).std() == pytest.approx(4.0, rel=0.03)


def test_of_too_few_clients_nothing_is_told() -> None:
    policy = SecAggHistogram(1.0, least=3)
    assert policy.read(released_by(policy, 2), make_order()) == [Summary(0, 0, 0, 0, 0, 0, 50, 1.0)] * 2


def test_all_reports_say_the_same_whoever_has_which_losses() -> None:
    policy = SecAggHistogram(0.0, least=3)
    read = policy.read(released_by(policy, 3), make_order(loss_threshold=1.0))
    assert len(set(read)) == 1
    assert read[0].loss_mean == pytest.approx(1.5, abs=0.05)
    assert 3 * read[0].over_count == pytest.approx(100, abs=1)


def test_one_client_alone_is_no_cohort() -> None:
    with pytest.raises(ValueError, match="2 clients"):
        SecAggHistogram(least=1)


def test_shares_of_the_noise_too_small_to_be_rounded_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0.316 for each, which must be at least 0.5"):
        SecAggHistogram(1.0, least=10)


def test_a_client_on_the_network_refuses_it() -> None:
    told = ClientPolicies(summary=SecAggHistogram()).to_json()
    assert told is not None
    with pytest.raises(BadSetting, match="secure aggregation"):
        ClientPolicies.from_json(told)


def test_weights_by_single_losses_are_refused() -> None:
    assert method("fedbalancer[summary=secagg-histogram(least=5)]").summary == SecAggHistogram(least=5)
    with pytest.raises(BadSetting, match="only their sum"):
        method("fedbalancer+qffl[summary=secagg-histogram]")
