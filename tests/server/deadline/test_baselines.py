"""Deadlines of the baselines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_result, make_setup, make_state
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.deadline import FirstReports, FixedDeadline, KthFastest, WaitForShare
from fedbalancer.server.loop import rounds
from fedbalancer.testing import check_policy


@pytest.mark.parametrize(("multiple", "deadline_s"), [(1, 52.0), (2, 105.0), (1.5, 78.0)])
def test_is_a_multiple_of_the_mean_completion_time_cut_after_the_multiplication(
    multiple: float, deadline_s: float
) -> None:
    setup = make_setup(make_ledger([100, 70], network_s=[10.0, 10.0]))  # 60 s and 45 s: T = 52.5
    policy = FixedDeadline(multiple)
    state = make_state(deadline=policy.init(setup))
    assert policy.plan(setup, state, np.array([0, 1])) == (deadline_s, 2)


def test_stays_the_same_whatever_happens() -> None:
    setup = make_setup()
    policy = FixedDeadline(1)
    state = make_state(deadline=policy.init(setup))
    assert policy.observe(setup, state, make_result(missing=["c0"])) == state.deadline


def test_big_clients_count_with_the_sample_cap() -> None:
    ledger = make_ledger([100, 1000])  # 60 s each once the second is cut at 100 samples
    assert FixedDeadline(1).init(make_setup(ledger, sample_cap=100)).deadline_s == 60.0
    assert FixedDeadline(1).init(make_setup(ledger)).deadline_s == 285.0


@pytest.mark.parametrize(("cohort", "quorum"), [(0, 0), (1, 1), (9, 9), (10, 10), (13, 10), (100, 10)])
def test_waits_for_k_reports_however_many_were_invited(cohort: int, quorum: int) -> None:
    setup = make_setup(clients_per_round=10)
    assert FirstReports().plan(setup, make_state(), np.arange(cohort)) == (math.inf, quorum)


def quorum(share: float, cohort: int) -> int:
    deadline_s, actual = WaitForShare(share).plan(make_setup(), make_state(), np.arange(cohort))
    assert deadline_s == math.inf
    return actual


@pytest.mark.parametrize(("cohort", "accepted"), [(5, 4), (10, 8), (7, 5), (100, 80), (1, 1), (0, 0)])
def test_smartpc_takes_the_whole_part_of_eighty_per_cent(cohort: int, accepted: int) -> None:
    assert quorum(0.8, cohort) == accepted


@given(st.integers(0, 1000))
def test_wait_for_all_waits_for_all(cohort: int) -> None:
    assert quorum(1.0, cohort) == cohort


@given(st.integers(1, 1000), st.integers(1, 100))
def test_is_the_exact_whole_part_and_at_least_one(cohort: int, percent: int) -> None:
    assert quorum(percent / 100, cohort) == max(percent * cohort // 100, 1)


# Network 10 s, a batch of ten samples 1 s: an epoch takes 10 + n / 10 seconds.
LEDGER = make_ledger([10, 20, 40, 80, 160])


@pytest.mark.parametrize("policy", [KthFastest(), KthFastest(0.9, 5.0)], ids=str)
def test_keeps_the_contract(policy: KthFastest) -> None:
    assert check_policy(policy) == "deadline"


@pytest.mark.parametrize(("share", "seconds"), [(0.01, 11.0), (0.2, 11.0), (0.5, 12.0), (0.6, 14.0), (1.0, 26.0)])
def test_the_interval_is_the_kth_fastest_clients_epoch(share: float, seconds: float) -> None:
    planned = KthFastest(share).plan(make_setup(LEDGER), make_state(LEDGER), np.arange(5))
    assert planned == (seconds, 5)


def test_it_may_be_of_more_epochs_and_of_epochs_cut_short() -> None:
    assert KthFastest(1.0, 5.0).plan(make_setup(LEDGER), make_state(LEDGER), np.arange(5))[0] == 90.0
    assert KthFastest(1.0).plan(make_setup(LEDGER, epoch_batches=1), make_state(LEDGER), np.arange(5))[0] == 11.0


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_k_clients_are_expected_to_do_an_epoch_within_it(sizes: list[int], share: float) -> None:
    ledger = make_ledger(sizes)
    interval_s, quorum = KthFastest(share).plan(make_setup(ledger), make_state(ledger), np.arange(len(sizes)))
    needed = 10.0 + -(-np.array(sizes) // 10)
    k = max(int(share * len(sizes) + 1e-9), 1)
    assert (needed <= interval_s).sum() >= k > (needed < interval_s).sum()
    assert quorum == len(sizes)


def test_fast_clients_do_more_and_slow_ones_less_than_an_epoch() -> None:
    spec = RunSpec(task=tinytask.load(), method="timelyfl", timing_only=True, settings={"clients_per_round": 6})
    world = build(spec, tinytask.load())
    state = world.server.init(world.executor.initial_weights(0))
    results = [result for _, result in rounds(world.server, world.engine, state, lambda s: s.round >= 20)]
    epochs = np.array([report.epochs for result in results for report in result.reports])
    assert (epochs < 1).any()
    assert (epochs > 1).any()
    assert epochs.max() <= world.settings.epochs
    completed = sum(len(result.reports) for result in results)
    fixed = replace(spec, method="fedavg[deadline=KthFastest]")
    other = build(fixed, tinytask.load())
    alone = [result for _, result in rounds(other.server, other.engine, state, lambda s: s.round >= 20)]
    assert completed > 2 * sum(len(result.reports) for result in alone)  # whose clients bring all epochs or nothing
