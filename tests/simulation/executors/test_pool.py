"""A pool of processes gives the same bytes as one process, whatever happens to its workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import same
from plain_trainer import Plain
from simulation.executors.harness import Killer, alive, check_all_end, check_equal, wait_until
from simulation.executors.trainers import MANY, Large, work, works

from fedbalancer.core import processes
from fedbalancer.core.errors import BadData, FedBalancerError
from fedbalancer.simulation.executors import InlineExecutor, PoolExecutor, shared_memory


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[PoolExecutor]:
    executor = PoolExecutor(Large, request.param)
    yield executor
    executor.close()


@pytest.fixture
def pool_of_two(tmp_path: Path) -> Iterator[PoolExecutor]:
    executor = PoolExecutor(lambda: Large(tmp_path), 2, {"client1": 1000})
    yield executor
    executor.close()


@pytest.mark.parametrize("count", [0, 1, 2, 11])
def test_equals_inline_bit_for_bit_and_in_the_order_of_the_work(pool: PoolExecutor, count: int) -> None:
    check_equal(pool, Large(), count)


def test_small_weights_and_a_trainer_that_evaluates_only_at_once() -> None:
    executor = PoolExecutor(Plain, 2)
    weights = Plain().initial_weights(1)
    try:
        assert same(executor.train(weights, works(5)), InlineExecutor(Plain()).train(weights, works(5)))
        assert executor.evaluate(weights) == Plain().evaluate(weights)
    finally:
        executor.close()


def test_without_shared_memory_messages_carry_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "make_block", lambda size: None)
    executor = PoolExecutor(Large, 2)
    try:
        check_equal(executor, Large(), 5)
    finally:
        executor.close()


def test_clients_one_by_one_survive_a_killed_worker_and_stop_at_the_first_error(
    pool_of_two: PoolExecutor, tmp_path: Path
) -> None:
    weights = pool_of_two.initial_weights(0)
    everybody = [*works(4), work("victim", batches=9), *works(6)]
    killer = Killer(tmp_path)
    trained = list(pool_of_two.train_each(weights, everybody))
    assert not alive(killer.victim())
    assert same(trained, InlineExecutor(Large(tmp_path)).train(weights, everybody))
    results = pool_of_two.train_each(weights, [*works(3), work("broken"), *works(3)])
    assert [next(results).client for _ in range(3)] == [each.client for each in works(3)]
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2"):
        next(results)
    assert same(pool_of_two.train(weights, works(3)), trained[:3])


def test_a_consumer_that_stops_early_leaves_a_pool_that_works(pool_of_two: PoolExecutor) -> None:
    weights = pool_of_two.initial_weights(0)
    results = pool_of_two.train_each(weights, works(11))
    first = next(results)
    results.close()  # type: ignore[attr-defined]
    assert same([first], pool_of_two.train(weights, works(11))[:1])


def test_a_worker_does_not_wait_while_the_caller_uses_a_result() -> None:
    executor = PoolExecutor(Large, 1)
    results = executor.train_each(executor.initial_weights(0), works(11))
    next(results)
    assert len(executor._busy) == 1
    results.close()  # type: ignore[attr-defined]
    executor.close()


def test_updates_outlive_the_pool() -> None:
    executor = PoolExecutor(Large, 1)
    weights = executor.initial_weights(0)
    trained = executor.train(weights, works(3))
    executor.train(weights * 2, works(3))
    executor.close()
    assert same(trained, InlineExecutor(Large()).train(weights, works(3)))


def test_a_worker_killed_in_mid_round_is_replaced_and_its_work_done_again(
    pool_of_two: PoolExecutor, tmp_path: Path
) -> None:
    weights = pool_of_two.initial_weights(0)
    everybody = [work("victim", batches=9), *works(6)]
    killer = Killer(tmp_path)
    trained = pool_of_two.train(weights, everybody)
    assert not alive(killer.victim())
    assert same(trained, InlineExecutor(Large(tmp_path)).train(weights, everybody))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_worker_that_was_stopped_for_good_is_replaced(
    pool_of_two: PoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOPPED_LOOKS", 2)
    weights = pool_of_two.initial_weights(0)
    everybody = [work("victim", batches=9), *works(6)]
    stopper = Killer(tmp_path, signal.SIGSTOP)
    trained = pool_of_two.train(weights, everybody)
    assert not alive(stopper.victim())
    assert same(trained, InlineExecutor(Large(tmp_path)).train(weights, everybody))


def test_a_worker_killed_between_rounds_is_not_missed(pool_of_two: PoolExecutor) -> None:
    weights = pool_of_two.initial_weights(0)
    wait_until(lambda: pool_of_two.ready)
    victim = int(pool_of_two.losses(weights, ["threads"])[0][2])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not alive(victim))
    check_equal(pool_of_two, Large(), 7)


def test_work_that_kills_every_worker_is_an_error_and_the_pool_lives_on() -> None:
    executor = PoolExecutor(Plain, 2)
    weights = np.ones(3, dtype=np.float32)
    try:
        with pytest.raises(FedBalancerError, match="a worker process died"):
            executor.train(weights, [work("killer"), work("a")])
        assert same(executor.train(weights, works(4)), InlineExecutor(Plain()).train(weights, works(4)))
    finally:
        executor.close()


def test_workers_that_die_at_their_start_are_an_error_then_and_afterwards() -> None:
    executor = PoolExecutor(lambda: os.kill(os.getpid(), signal.SIGKILL), 2)  # type: ignore[arg-type,return-value]
    try:
        for _ in range(2):
            with pytest.raises(FedBalancerError, match="a worker process died"):
                executor.initial_weights(0)
    finally:
        executor.close()


def test_a_trainer_that_cannot_be_made_says_why() -> None:
    def refuse() -> Any:
        raise BadData("client 'ann' has no samples")

    executor = PoolExecutor(refuse, 2)
    try:
        with pytest.raises(BadData, match="'ann' has no samples"):
            executor.train(np.ones(3, dtype=np.float32), works(2))
    finally:
        executor.close()


def test_the_error_told_is_that_of_the_first_piece_whoever_worked_on_it(pool: PoolExecutor) -> None:
    weights = pool.initial_weights(0)
    names = ["a", "b", "empty-1", "c", "empty-2", "d"]
    for batches in ([1, 1, 1, 1, 9, 1], [9, 1, 1, 1, 9, 9]):
        trouble = [work(name, batches=each) for name, each in zip(names, batches, strict=True)]
        with pytest.raises(BadData, match="client 'empty-1' has no samples"):
            pool.train(weights, trouble)
    assert len(pool.train(weights, works(3))) == 3


def test_an_error_that_cannot_travel_is_told_in_words(pool: PoolExecutor) -> None:
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2"):
        pool.train(pool.initial_weights(0), [work("broken")])


def test_an_interrupt_leaves_a_pool_that_can_go_on(pool_of_two: PoolExecutor, tmp_path: Path) -> None:
    weights = pool_of_two.initial_weights(0)

    def interrupt() -> None:
        wait_until((tmp_path / "pid").is_file)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # A job in the background of a shell starts with interrupts ignored; here they must arrive.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            pool_of_two.train(weights, [work("victim"), work("a")])
    finally:
        signal.signal(signal.SIGINT, before)
    check_equal(pool_of_two, Large(), 5)


def test_every_worker_computes_on_one_thread(pool: PoolExecutor) -> None:
    weights = np.zeros(MANY, dtype=np.float32)
    told = pool.losses(weights, ["threads"] * 8)
    assert {(threads, variable) for threads, variable, _ in map(tuple, told)} == {(1.0, 1.0)}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_their_driver() -> None:
    script = """
import time
from simulation.executors.trainers import Large
from fedbalancer.simulation.executors import PoolExecutor
if __name__ == "__main__":
    executor = PoolExecutor(Large, 2)
    while not executor.ready:
        time.sleep(0.02)
    print("ready", flush=True)
    time.sleep(600)
"""
    check_all_end(script)
