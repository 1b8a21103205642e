"""A pool of processes gives the same bytes as one process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from builders import same
from hypothesis import given
from hypothesis import strategies as st
from plain_trainer import Plain

from fedbalancer.engine.executors import InlineExecutor, PoolExecutor
from fedbalancer.engine.executors.pool import balanced
from fedbalancer.errors import FedBalancerError, TrainingDiverged
from fedbalancer.types import ClientWork


def work(client: str, batches: int = 3) -> ClientWork:
    seed = int.from_bytes(client.encode(), "big") % 2**32
    return ClientWork(client, np.arange(5), batches, 10, 0.1, 0.01, None, seed)


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolExecutor]:
    executor = PoolExecutor(Plain, 2)
    yield executor
    executor.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_equals_inline_bit_for_bit_and_in_the_order_of_the_work(pool: PoolExecutor, count: int) -> None:
    inline = InlineExecutor(Plain())
    weights = inline.initial_weights(4)
    works = [work(f"client{number}", batches=1 + number * 7 % 5) for number in range(count)]
    assert same(pool.initial_weights(4), weights)
    assert same(pool.train(weights, works), inline.train(weights, works))
    clients = [each.client for each in works]
    assert same(pool.losses(weights, clients), inline.losses(weights, clients))
    assert pool.evaluate(weights) == inline.evaluate(weights)
    assert pool.layout == inline.layout


def test_an_error_of_the_trainer_comes_through_and_the_pool_lives_on(pool: PoolExecutor) -> None:
    weights = np.ones(3, dtype=np.float32)
    with pytest.raises(TrainingDiverged, match="client 'diverging'"):
        pool.train(weights, [work("a"), work("diverging")])
    assert len(pool.train(weights, [work("a")])) == 1


def test_a_worker_that_dies_is_a_clear_error_then_and_afterwards() -> None:
    executor = PoolExecutor(Plain, 2)
    weights = np.ones(3, dtype=np.float32)
    try:
        with pytest.raises(FedBalancerError, match="a worker process died"):
            executor.train(weights, [work("killer"), work("a")])
        with pytest.raises(FedBalancerError, match="a worker process died"):
            executor.train(weights, [work("a")])
        with pytest.raises(FedBalancerError, match="a worker process died"):
            executor.evaluate(weights)
    finally:
        executor.close()


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 8))
def test_work_is_dealt_out_whole_and_evenly(costs: list[int], parts: int) -> None:
    dealt = balanced(costs, parts)
    assert len(dealt) == parts
    assert sorted(position for part in dealt for position in part) == list(range(len(costs)))
    load = [sum(costs[position] for position in part) for part in dealt]
    # No part could be relieved by giving its last piece to the cheapest one.
    assert all(total - costs[part[-1]] <= min(load) for total, part in zip(load, dealt, strict=True) if part)
    assert max(load, default=0) <= sum(costs) / parts + max(costs, default=0)
