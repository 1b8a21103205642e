"""Clients that keep the training which the end of a round interrupts (FLUDE)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup
from experiments import tinytask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.client.round import MODEL, InterruptedTraining
from fedbalancer.client.training import CachedTraining
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FailedClient
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method, method
from fedbalancer.server.clients import Dependable
from fedbalancer.server.clients.dependable import Completions
from fedbalancer.server.server import Server
from fedbalancer.testing import check_policy

# As in test_engine: ten batches of 1 s, download takes 2 s and upload 3 s, so five epochs end at 15 s.
CACHED = Method("cached").with_policies(train=CachedTraining(rounds=2))


def kept(world: Any, client: str) -> InterruptedTraining | None:
    return InterruptedTraining.read(world.engine.memory[client].state)


def test_an_interrupted_client_trains_the_batches_that_are_left_without_a_download(make_world: Any, phone: Any) -> None:
    world = make_world(CACHED, [phone()])
    first = world.run("c0", round=1, deadline_s=8.5)  # six batches end at 8 s
    assert (first.reports, first.missing[0].why, first.seconds) == ((), "train", 8.5)
    training = kept(world, "c0")
    assert training is not None
    assert (training.round, training.left, training.model.tolist()) == (1, 4, [2.0, 3.0])
    second = world.run("c0", round=2, deadline_s=8.5)  # four batches and an upload take 7 s
    assert second.seconds == 7.0
    assert [work.batches for work in world.executor.trained] == [6, 4]
    assert all(MODEL not in work.state for work in world.executor.trained)
    (report,) = second.reports
    assert report.update.tolist() == [2.0, 2.0], "one step of six batches and one of four, relative to the model"
    assert report.weight == 20.0
    assert (first.down_bytes > 0, second.down_bytes) == (True, 0)
    assert kept(world, "c0") is None


def test_a_client_that_is_too_stale_starts_over_from_the_new_model(make_world: Any, phone: Any) -> None:
    world = make_world(CACHED, [phone()])
    world.run("c0", round=1, deadline_s=8.5)
    world.run("c0", round=4, deadline_s=8.5)
    assert [work.batches for work in world.executor.trained] == [6, 6]
    training = kept(world, "c0")
    assert training is not None
    assert (training.round, training.left) == (4, 4)


def test_a_client_without_time_for_a_batch_keeps_nothing_and_others_lose_their_training(
    make_world: Any, phone: Any
) -> None:
    world = make_world(CACHED, [phone(batch_s=7.0)])
    world.run("c0", round=1, deadline_s=8.5)
    assert kept(world, "c0") is None
    plain = make_world(Method("plain"), [phone()])
    plain.run("c0", round=1, deadline_s=8.5)
    assert (plain.executor.trained, kept(plain, "c0")) == ([], None)


@dataclass
class PaperClient:
    """The algorithm of the page, for one client: time is counted in seconds of work."""

    bound: int
    batch_s: float
    base: int = 0
    left: int = 0

    def play(self, number: int, deadline_s: float) -> tuple[bool, int, bool]:
        """Return whether it downloads, how many batches it trains, and whether it reports."""
        downloads = self.left == 0 or number - self.base > self.bound
        if downloads:
            self.base, self.left = number, 10
        clock = 2.0 if downloads else 0.0
        if clock + self.left * self.batch_s + 3.0 <= deadline_s:
            trained, self.left = self.left, 0
            return downloads, trained, True
        trained = 0
        while self.left and clock + self.batch_s <= deadline_s:
            clock, trained, self.left = clock + self.batch_s, trained + 1, self.left - 1
        if self.left == 0:  # its upload was interrupted, so the last batch is repeated
            trained, self.left = trained - 1, 1
        if downloads and not trained:
            self.left = 0
        return downloads, trained, False


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1.25, 4.25, 6.75, 9.25, 13.75, 20.0])), max_size=12),
    st.integers(1, 5), st.sampled_from([0.5, 1.0, 3.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_follows_the_algorithm_of_the_page(
    make_world: Any, phone: Any, plan: list[tuple[int, float]], bound: int, batch_s: float
) -> None:
    world = make_world(Method("cached").with_policies(train=CachedTraining(rounds=bound)), [phone(batch_s=batch_s)])
    paper, number = PaperClient(bound, batch_s), 0
    for gap, deadline_s in plan:
        number += gap
        before = len(world.executor.trained)
        result = world.run("c0", round=number, deadline_s=deadline_s)
        downloads, trained, reports = paper.play(number, deadline_s)
        assert sum(work.batches for work in world.executor.trained[before:]) == trained
        assert (result.down_bytes > 0, bool(result.reports)) == (downloads, reports)
        training = kept(world, "c0")
        assert (0 if training is None else training.left) == paper.left


@given(st.lists(st.tuples(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4))), max_size=8))
@settings(max_examples=40, deadline=None)
def test_dependability_is_the_mean_of_a_beta_posterior(ends: list[tuple[set[int], set[int]]]) -> None:
    ledger = make_ledger([10] * 5)
    state = Server(method("flude").server, make_setup(ledger)).init(np.zeros(2, dtype=np.float32))
    alpha, beta = np.ones(5), np.ones(5)
    for done, failed in ends:
        reports = [make_report(f"c{row}", [0.0, 0.0]) for row in sorted(done)]
        missing = tuple(FailedClient(f"c{row}", "train") for row in sorted(failed - done))
        own = Dependable().observe(make_setup(ledger), state, replace(make_result(reports), missing=missing))
        state = replace(state, clients=own)
        for row in range(5):
            alpha[row] += row in done
            beta[row] += row in failed - done
    assert Dependable().dependability(state.clients) == pytest.approx(alpha / (alpha + beta))


def test_it_selects_dependable_clients_new_ones_and_not_always_the_same() -> None:
    ledger = make_ledger([10] * 8)
    setup = make_setup(ledger, clients_per_round=5)
    state = Server(method("flude").server, setup).init(np.zeros(2, dtype=np.float32))
    own = Completions(np.array([9.0, 1, 1, 1, 1, 0, 0, 0]), np.array([0.0, 1, 0, 3, 0, 0, 0, 0]))
    selected = Dependable(balance=0).select_clients(setup, replace(state, clients=own), np.arange(8)).tolist()
    assert selected[:4] == [0, 1, 2, 4], "not client 3, which failed three times of four"
    assert selected[4] >= 5, "one place of five explores"
    often = Dependable(balance=5).select_clients(setup, replace(state, clients=own), np.arange(8)).tolist()
    assert 0 not in often, "a client that was selected far more often than the others makes room"
    assert len(Dependable().select_clients(setup, replace(state, clients=own), np.array([3, 6]))) == 2


def test_flude_keeps_the_contract_and_refuses_what_it_cannot_carry() -> None:
    own = method("flude")
    assert (check_policy(own.clients), check_policy(own.train)) == ("clients", "train")
    for name, why in {
        "flude+late": "CachedTraining has nothing to continue",
        "flude+quantised": "cannot encode",
        "flude[part=HeteroFL]": "whole model only",
    }.items():
        with pytest.raises(BadSetting, match=why):
            method(name)


def test_flower_refuses_it_by_name() -> None:
    pytest.importorskip("flwr")
    from fedbalancer.flower import Strategy

    with pytest.raises(BadSetting, match="method 'flude' runs in the simulator only"):
        Strategy("flude")


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    task = tinytask.load()
    name = "flude[deadline=.6T,train.rounds=9]"
    spec = RunSpec(task=task, method=name, seed=3, rounds=12, settings={"clients_per_round": 4, "checkpoint_s": 0})
    execute(spec, tmp_path / "whole")
    seen: list[int] = []
    execute(spec, tmp_path / "cut", progress=lambda p: seen.append(p.round), stopped=lambda: max(seen, default=0) >= 3)
    state = max((tmp_path / "cut" / "checkpoint").glob("step-*/state.json"))
    assert any(MODEL in name for name in json.loads(state.read_bytes())["body"]["arrays"]["names"])
    assert resume(tmp_path / "cut", task=tinytask.load()).status == "done"
    for file in ("rounds.parquet", "clients.parquet", "evals.parquet", "model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_with_short_deadlines_makes_progress() -> None:
    run = fb.run(tinytask.load(), "flude[deadline=.6T,train.rounds=9]", 0, rounds=10, workers=1)
    assert run.rounds["completed"].sum() > 0
    assert math.isfinite(run.evals["loss"].to_list()[-1])
