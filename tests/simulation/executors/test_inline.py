"""Executors of this process: inline, and inline until a run is long."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from builders import same
from simulation.executors.harness import check_equal, wait_until
from simulation.executors.trainers import Large, works

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.types import Layout
from fedbalancer.simulation.executors import AdaptiveExecutor, InlineExecutor, PoolExecutor


class Echo:
    """A trainer that gives back what it was asked."""

    layout = Layout((("weight", (1,)),))

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: (verb, *arguments)


def test_asks_the_trainer_once_for_each_piece_of_work_in_order() -> None:
    trainer: Any = Echo()
    executor: Any = InlineExecutor(trainer)
    assert executor.layout == Echo.layout
    assert executor.initial_weights(3) == ("initial_weights", 3)
    assert executor.losses("weights", ["b", "a"]) == [("losses", "weights", "b"), ("losses", "weights", "a")]
    assert executor.train("weights", ["b", "a"]) == [("train", "weights", "b"), ("train", "weights", "a")]
    assert executor.evaluate("weights") == ("evaluate", "weights")
    executor.close()


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
