"""Ray's actors give the same bytes as one process, on a local Ray of two workers of which one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import same
from experiments import tinytask
from plain_trainer import Plain
from scaffold import Ditto, FrozenBias, Scaffold, ScaffoldServer
from simulation.executors.harness import Killer, alive, check_all_end, check_equal, wait_until
from simulation.executors.trainers import MANY, Large, work, works

import fedbalancer as fb

pytest.importorskip("ray")

from fedbalancer.core.errors import BadData, FedBalancerError
from fedbalancer.simulation.executors import InlineExecutor, RayExecutor
from fedbalancer.simulation.executors import ray as ray_module
from fedbalancer.simulation.executors.ray import RaySession


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[RaySession]:
    """One Ray for all tests of this file; what they start finds it."""
    session = RaySession(None, 2)
    yield session
    session.close()


@pytest.fixture
def actors(tmp_path: Path) -> Iterator[RayExecutor]:
    executor = RayExecutor(lambda: Large(tmp_path))
    yield executor
    executor.close()


def test_equals_inline_bit_for_bit_with_a_worker_a_cpu(actors: RayExecutor) -> None:
    assert actors.workers == 2
    for count in (0, 1, 11):
        check_equal(actors, Large(), count)


def test_an_actor_killed_in_mid_round_is_replaced_and_its_work_done_again(actors: RayExecutor, tmp_path: Path) -> None:
    weights = actors.initial_weights(0)
    everybody = [work("victim", batches=9), *works(6)]
    killer = Killer(tmp_path)
    trained = actors.train(weights, everybody)
    assert not alive(killer.victim())
    assert same(trained, InlineExecutor(Large(tmp_path)).train(weights, everybody))
    check_equal(actors, Large(), 5)


def test_work_that_kills_every_actor_is_an_error_and_the_others_live_on() -> None:
    executor = RayExecutor(Plain, 1)
    weights = np.ones(3, dtype=np.float32)
    try:
        with pytest.raises(FedBalancerError, match="a worker process died"):
            executor.train(weights, [work("killer"), work("a")])
        assert same(executor.train(weights, works(4)), InlineExecutor(Plain()).train(weights, works(4)))
    finally:
        executor.close()


def test_a_cluster_of_unlike_processors_is_told_when_it_is_used(
    session: RaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node under two names; the second time each names another processor."""
    (node,) = session.ray.nodes()
    monkeypatch.setattr(session.ray, "nodes", lambda: [node | {"NodeManagerHostname": name} for name in ("one", "two")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray_module.warn_of_different_nodes(session.ray)
    monkeypatch.setattr(ray_module, "describe_processor", lambda: f"processor {os.urandom(4).hex()}")
    with pytest.warns(UserWarning, match="processors of the Ray cluster differ.* one: processor .*; two: processor"):
        executor = RayExecutor(Plain, 1)
    executor.initial_weights(0)
    executor.close()


def test_errors_of_a_trainer_come_through_with_their_words(actors: RayExecutor) -> None:
    weights = actors.initial_weights(0)
    with pytest.raises(BadData, match="client 'empty-1' has no samples"):
        actors.train(weights, [work("a"), work("empty-1"), work("empty-2", batches=9)])
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2"):
        actors.train(weights, [work("broken")])
    assert len(actors.train(weights, works(3))) == 3


def test_a_trainer_that_cannot_be_made_says_why() -> None:
    def refuse() -> Large:
        raise BadData("client 'ann' has no samples")

    executor = RayExecutor(refuse, 1)
    try:
        with pytest.raises(BadData, match="'ann' has no samples"):
            executor.initial_weights(0)
    finally:
        executor.close()


def test_every_actor_computes_on_one_thread(actors: RayExecutor) -> None:
    told = actors.losses(np.zeros(MANY, dtype=np.float32), ["threads"] * 8)
    assert {(threads, variable) for threads, variable, _ in map(tuple, told)} == {(1.0, 1.0)}


def test_more_workers_than_the_cluster_has_are_an_error_once_none_comes(
    actors: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: actors.ready)  # both CPUs are taken
    monkeypatch.setattr(ray_module, "START_S", 2.0)
    other = RayExecutor(Plain, 1)
    try:
        with pytest.raises(FedBalancerError, match="2 CPUs, of which 0 are free"):
            other.initial_weights(0)
    finally:
        other.close()


def test_work_may_take_longer_than_a_worker_may_take_to_start(
    actors: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = actors.initial_weights(0)
    wait_until(lambda: actors.ready)
    monkeypatch.setattr(ray_module, "START_S", 1.0)
    assert [trained.client for trained in actors.train(weights, [work("slow")])] == ["slow"]


def test_where_no_ray_answers_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    address = ["--executor", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-m", "fedbalancer", "run", "synthetic", *address],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "error: address = '127.0.0.1:1': no Ray answers there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_gives_the_same_bytes_as_in_this_process() -> None:
    options = {"settings": {"w": 2}, "rounds": 4}
    inline = fb.run(tinytask.load_wide(), **options)  # type: ignore[arg-type]
    on_ray = fb.run(tinytask.load_wide(), executor="ray", workers=2, **options)  # type: ignore[arg-type]
    assert same(on_ray.weights, inline.weights)
    for table in ("rounds", "evals", "clients"):
        assert getattr(on_ray, table).equals(getattr(inline, table))


@pytest.mark.parametrize("part", [False, True])
def test_methods_with_state_and_parts_give_the_same_bytes(part: bool) -> None:
    own = fb.method("fedavg+wfa", train=Scaffold(), aggregate=ScaffoldServer())
    own = fb.method("fedavg+wfa", train=Ditto(), part=FrozenBias()) if part else own
    inline, on_ray = (
        fb.run(tinytask.load(), own, rounds=3, **options) for options in ({}, {"executor": "ray", "workers": 2})
    )
    assert same(on_ray.weights, inline.weights)
    assert on_ray.rounds.equals(inline.rounds)
    assert not same(inline.weights, fb.run(tinytask.load(), "fedavg+wfa", rounds=3).weights)


def test_a_run_on_ray_of_its_own_leaves_stdout_clean_and_nothing_behind(tmp_path: Path) -> None:
    short = tempfile.mkdtemp(prefix="t", dir="/tmp")  # Ray's sockets allow no long paths
    environment = {**os.environ, "TMPDIR": short}
    arguments = ["run", "synthetic", "--users", "8", "--rounds", "3", "--set", "clients_per_round=3", "--json"]
    made = {}
    for name, more in {"ray": ["--executor", "ray", "--workers", "2"], "inline": ["--workers", "1"]}.items():
        done = subprocess.run(
            [sys.executable, "-m", "fedbalancer", *arguments, "--out", name, *more],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rounds"] == 3
        assert "ray" not in done.stderr.lower()
        files = ("rounds.parquet", "evals.parquet", "clients.parquet", "model.safetensors")
        made[name] = [(tmp_path / name / file).read_bytes() for file in files]
    assert made["ray"] == made["inline"]
    Path(short).rmdir()  # it is empty again


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_actors_end_with_their_driver() -> None:
    script = """
import time
from simulation.executors.trainers import Large
from fedbalancer.simulation.executors import RayExecutor
executor = RayExecutor(Large, 2)
while not executor.ready:
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""
    check_all_end(script, "ray::Actor")  # helpers of Ray's own take a minute to notice
