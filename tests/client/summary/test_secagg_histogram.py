"""The sum of a cohort's histograms."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_order

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.summary import SecAggHistogram
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Summary
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

LOSSES = [np.full(50, 0.5), np.full(50, 1.5), np.full(50, 2.5)]


def released(policy: SecAggHistogram, count: int, seed: int = 0) -> list[Summary]:
    rng = np.random.default_rng(seed)
    return [policy.summarize(losses, np.arange(50), 1.0, make_order(), rng) for losses in LOSSES[:count]]


def test_keeps_the_contract() -> None:
    assert check_policy(SecAggHistogram()) == "summary"


def test_the_least_cohort_adds_all_of_the_noise() -> None:
    policy, exact = SecAggHistogram(4.0, least=3), SecAggHistogram(0.0, least=3)
    truth = np.sum([each.released for each in released(exact, 3)], axis=0)
    sums = np.array([np.sum([each.released for each in released(policy, 3, seed)], axis=0) for seed in range(500)])
    assert (sums - truth).std() == pytest.approx(4.0, rel=0.03)


def test_of_too_few_clients_nothing_is_told() -> None:
    policy = SecAggHistogram(1.0, least=3)
    assert policy.read(released(policy, 2), make_order()) == [Summary(0, 0, 0, 0, 0, 0, 50, 1.0)] * 2


def test_all_reports_say_the_same_whoever_has_which_losses() -> None:
    policy = SecAggHistogram(0.0, least=3)
    read = policy.read(released(policy, 3), make_order(loss_threshold=1.0))
    assert len(set(read)) == 1
    assert read[0].loss_mean == pytest.approx(1.5, abs=0.05)
    assert 3 * read[0].over_count == pytest.approx(100, abs=1)


def test_one_client_alone_is_no_cohort() -> None:
    with pytest.raises(ValueError, match="2 clients"):
        SecAggHistogram(least=1)


def test_shares_of_the_noise_too_small_to_be_rounded_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0.316 for each, which must be 0.5 or more"):
        SecAggHistogram(1.0, least=10)


def test_a_client_on_the_network_refuses_it() -> None:
    told = ClientPolicies(summary=SecAggHistogram()).to_json()
    assert told is not None
    with pytest.raises(BadSetting, match="hides"):
        ClientPolicies.from_json(told)


def test_weights_by_single_losses_are_refused() -> None:
    assert method("fedbalancer[summary=secagg-histogram(least=5)]").summary == SecAggHistogram(least=5)
    with pytest.raises(BadSetting, match="only the sum"):
        method("fedbalancer+qffl[summary=secagg-histogram]")
