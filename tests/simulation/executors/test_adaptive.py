"""Short work stays in this process; long work moves to a pool, and nobody can tell from the results."""

from __future__ import annotations

import os
import signal

import pytest
from builders import same
from simulation.executors.harness import check_equal, wait_until
from simulation.executors.trainers import Large, works

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.simulation.executors import AdaptiveExecutor, InlineExecutor, PoolExecutor


def no_pool() -> PoolExecutor:
    raise AssertionError("nobody asked for a pool")


def test_short_work_starts_no_pool() -> None:
    executor = AdaptiveExecutor(Large(), no_pool, patience_s=3600.0)
    check_equal(executor, Large(), 5)
    executor.close()


def test_long_work_moves_to_the_pool_when_it_is_ready() -> None:
    pools: list[PoolExecutor] = []

    def make_pool() -> PoolExecutor:
        pools.append(PoolExecutor(Large, 2))
        return pools[0]

    executor = AdaptiveExecutor(Large(), make_pool, patience_s=0.0)
    weights = executor.initial_weights(4)
    expected = InlineExecutor(Large()).train(weights, works(5))
    try:
        assert same(executor.train(weights, works(5)), expected)
        assert len(pools) == 1
        wait_until(lambda: pools[0].ready)
        check_equal(executor, Large(), 5)
        here, there = (int(each.losses(weights, ["threads"])[0][2]) for each in (InlineExecutor(Large()), executor))
        assert here != there
    finally:
        executor.close()
    assert len(pools) == 1


def test_a_pool_whose_workers_die_at_their_start_is_done_without() -> None:
    pools: list[PoolExecutor] = []

    def make_pool() -> PoolExecutor:
        pools.append(PoolExecutor(lambda: os.kill(os.getpid(), signal.SIGKILL), 2))  # type: ignore[arg-type,return-value]
        return pools[-1]

    executor = AdaptiveExecutor(Large(), make_pool, patience_s=0.0)
    weights = executor.initial_weights(0)
    executor.evaluate(weights)
    with pytest.raises(FedBalancerError, match="died"):
        wait_until(lambda: pools[0].ready)
    check_equal(executor, Large(), 3)
    assert len(pools) == 1
    executor.close()
