"""TimelyFL's interval: the k-th fastest of the round, and work that fits it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_setup, make_state
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.deadline import KthFastest
from fedbalancer.server.loop import rounds
from fedbalancer.testing import check_policy

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
