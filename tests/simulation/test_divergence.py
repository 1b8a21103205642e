"""A client whose training diverges costs the round its report, as on Flower; a run in which all diverge ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builders import make_ledger, make_order, make_report, same
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.client.work import AllOrNothing
from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import DivergedTraining, RoundPlan, ServerState, Setup, Timings
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method, method
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.divergence import diverged_report
from fedbalancer.simulation.executors import InlineExecutor, PoolExecutor
from fedbalancer.simulation.state import PendingReport, PendingReports
from fedbalancer.training.trainer import TorchTrainer

WEIGHTS = np.array([1.0, 2.0], dtype=np.float32)
PROBLEM = "training diverged: the update is not finite; lower the learning rate"


@dataclass(frozen=True)
class HotMean(WeightedMean):
    """FedAvg in which some clients train with a learning rate that nothing survives."""

    hot: tuple[str, ...] = ("c3",)

    def client_rates(self, setup: Setup, state: ServerState, clients: Sequence[str]) -> Mapping[str, float]:
        return {client: 1e60 for client in clients if client in self.hot or not self.hot}


def hot(base: str, *clients: str) -> Method:
    return method(base, aggregate=HotMean(hot=clients))


class TestOneClient:
    def test_it_fails_in_its_rounds_and_the_run_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        result = fb.run("synthetic", hot("fedavg+wfa", "u00001", "u00005"), rounds=25, users=12, workers=1)
        clients = result.clients
        bad = clients.filter(pl.col("outcome") == "invalid")
        assert bad.height >= 3
        assert set(bad["client"]) == {"u00001", "u00005"}
        assert (
            clients.filter(pl.col("outcome") == "completed", pl.col("client").is_in(["u00001", "u00005"])).height == 0
        )
        assert all(why.startswith("training diverged: ") and "lower the learning rate" in why for why in bad["why"])
        assert (bad["train_s"] > 0).all()
        assert (result.rounds["completed"] > 0).all()
        assert result.evals["accuracy"][-1] > 0.5
        first = bad.row(0, named=True)
        text = f"round {first['round']}: rejected the report of client '{first['client']}': {first['why']}"
        assert text in caplog.text
        assert (bad.group_by("client").agg(pl.col("round").sort().diff().min())["round"] >= 2).all(), "it is suspended"

    def test_its_time_is_that_of_any_report(self) -> None:
        bad, plain = (fb.run(tinytask.load(), each, seed=2) for each in (hot("fedavg+wfa", "c3"), "fedavg+wfa"))
        first = bad.clients.filter(pl.col("outcome") == "invalid")["round"][0]
        columns = ["client", "download_s", "forward_s", "train_s", "upload_s", "paused_s"]
        same_round = [each.clients.filter(pl.col("round") == first).select(columns) for each in (bad, plain)]
        assert same_round[0].equals(same_round[1])
        spent = [each.rounds.filter(pl.col("round") == first) for each in (bad, plain)]
        assert spent[0].select("start_s", "end_s", "up_bytes").equals(spent[1].select("start_s", "end_s", "up_bytes"))

    @pytest.mark.parametrize("name", ["fedbalancer", "canter", "oort", "scaffold", "flude", "heterofl", "fedbuff",
                                      "fedbalancer+late", "fedbalancer+robust"])  # fmt: skip
    def test_every_kind_of_method_survives_it(self, name: str) -> None:
        results = play(name, Diverges("c0", "c1", "c3", "c5"), rounds_=12)[1]
        assert len(results) == 12
        assert any(each.why == "invalid" for result in results for each in result.missing)


class Diverges(InlineExecutor):
    """Trainings and forward passes of some clients diverge."""

    def __init__(self, *clients: str, verbs: Sequence[str] = ("train",)) -> None:
        super().__init__(TorchTrainer(tinytask.load()))
        self._clients, self._verbs = clients, verbs

    def train(self, weights: Any, works: Any) -> Any:
        return list(self.train_each(weights, works))

    def train_each(self, weights: Any, works: Any) -> Iterator[Any]:
        for work, each in zip(works, super().train_each(weights, works), strict=True):
            yield self._spoil(each) if "train" in self._verbs and work.client in self._clients else each

    def _spoil(self, result: Any) -> Any:
        return DivergedTraining(result.client, "the update is not finite; lower the learning rate")

    def losses(self, weights: Any, clients: Any) -> Any:
        found = super().losses(weights, clients)
        bad = self._clients if "losses" in self._verbs else ()
        return [
            DivergedTraining(client, "the loss of sample 0 is inf") if client in bad else each
            for client, each in zip(clients, found, strict=True)
        ]


class SendsNan(Diverges):
    """The same clients send an update that the server rejects."""

    def _spoil(self, result: Any) -> Any:
        return replace(result, update=result.update * np.float32("nan"))


def play(name: str | Method, executor: Any, rounds_: int = 8, keep_bytes: int = 10**9, **options: Any) -> Any:
    settings = {"clients_per_round": 5, **options.pop("settings", {})}
    spec = RunSpec(task=tinytask.load(), method=name, seed=1, settings=settings, **options)
    world = build(spec, tinytask.load(), executor)
    world.engine.keep_bytes = keep_bytes
    start = world.server.init(world.executor.initial_weights(1))
    played = list(rounds(world.server, world.engine, start, lambda state: state.round >= rounds_))
    return [state for state, _ in played], [result for _, result in played]


def without_problem(result: Any) -> Any:
    return replace(result, missing=tuple(replace(each, problem="") for each in result.missing), folded=None)


@pytest.mark.parametrize("name", ["fedavg+wfa", "fedavg+2t", "fedavg+1t+late", "fedbuff", "fedasync", "fedcompass",
                                  "ca2fl", "pisces"])  # fmt: skip
def test_it_counts_exactly_as_a_report_that_is_rejected(name: str) -> None:
    """Also for the places of asynchronous methods, pending reports and bytes."""
    diverged, rejected = (play(name, kind("c3", "c5"), 20) for kind in (Diverges, SendsNan))
    problems = [each.problem for result in diverged[1] for each in result.missing if each.why == "invalid"]
    assert len(problems) > 1
    assert all(problem.startswith(PROBLEM) for problem in problems)
    assert same(*(list(map(without_problem, results)) for _, results in (diverged, rejected)))
    assert same(diverged[0], rejected[0])


@pytest.mark.parametrize("name", ["fedavg+wfa", "fedbalancer", "fedbuff"])
def test_workers_and_streams_give_the_same_bytes(name: str) -> None:
    chosen = hot(name, "c3") if name != "fedbuff" else name
    inline = play(chosen, InlineExecutor(TorchTrainer(tinytask.load())))
    pool = PoolExecutor(lambda: TorchTrainer(tinytask.load()), 2)
    try:
        assert same(play(chosen, pool), inline)
        streamed, results = play(chosen, pool, keep_bytes=0)
    finally:
        pool.close()
    assert same(streamed, inline[0])
    assert same([result.missing for result in results], [result.missing for result in inline[1]])


def test_attackers_and_private_summaries_do_not_read_it() -> None:
    for name in ("fedbalancer[summary=Histogram(bins=8)]", "fedavg+wfa"):
        results = play(name, Diverges("c0", "c3"), settings={"attacks": ["utility-liar:1", "little-is-enough:2"]})[1]
        assert any(each.problem.startswith(PROBLEM) for result in results for each in result.missing)


class TestForwardPass:
    def test_a_client_whose_forward_pass_diverges_reports_that(
        self, make_world: Any, needy: Method, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = make_world(needy)
        bad = DivergedTraining("c1", "the loss of sample 0 is inf")
        honest = world.executor.losses
        monkeypatch.setattr(
            world.executor, "losses", lambda w, clients: [bad if c == "c1" else honest(w, [c])[0] for c in clients]
        )
        result = world.run("c0", "c1", deadline_s=9.0, loss_threshold=5.0)
        report = result.reports[1]
        assert (report.client, report.problem) == ("c1", "training diverged: the loss of sample 0 is inf")
        assert report.timings == Timings(2.0, 1.0, 0.0, 3.0)  # 20 samples are two batches, and half of their time
        assert [work.client for work in world.executor.trained] == ["c0"]
        assert (result.missing, result.seconds) == ((), result.reports[0].timings.total_s)
        late = world.run("c1", deadline_s=5.5, loss_threshold=5.0, round=2)
        assert (late.reports, late.missing[0].why, late.seconds) == ((), "upload", 5.5)

    @pytest.mark.parametrize("name", ["canter", "canter+late"])
    def test_a_run_continues_without_it(self, name: str) -> None:
        every = method(name, forward_pass="every")
        results = play(every, Diverges("c3", verbs=["losses"]), 20, settings={"w": 1})[1]
        problems = [each.problem for result in results for each in result.missing if each.why == "invalid"]
        assert problems
        assert set(problems) == {"training diverged: the loss of sample 0 is inf"}


class TestPending:
    def test_arrays_bring_reports_with_and_without_an_update_back(self) -> None:
        ledger = make_ledger((10,) * 5)
        part = np.array([True, False])
        bad = [
            diverged_report(DivergedTraining(client, f"the loss of sample {place} is ∞"), Timings(1.0, 2.0, 3.0), part)
            for place, client in enumerate(("c0", "c3"))
        ]
        good = [replace(make_report(client), part=part) for client in ("c1", "c4")]
        for reports in (bad, good, bad + good):
            pending = PendingReports().add(
                PendingReport(each, number, 7.5 * number) for number, each in enumerate(reports)
            )
            arrays = pending.to_arrays(ledger)
            assert same(list(PendingReports.from_arrays(arrays, ledger)), list(pending))

    @pytest.mark.parametrize("name", ["fedbuff", "fedavg+1t+late"])
    def test_a_stopped_run_resumes_to_the_same_bytes(self, tmp_path: Path, name: str) -> None:
        spec = RunSpec(task=task_of_wild_client(), method=name, rounds=12, settings={"checkpoint_s": 0.0})
        whole = execute(spec, tmp_path / "whole", task=task_of_wild_client())
        assert whole.clients.filter(pl.col("why").str.starts_with("training diverged")).height > 1
        for number in range(1, 12):
            left = iter([False] * number)
            execute(spec, tmp_path / f"{number}", task=task_of_wild_client(), stopped=lambda: next(left, True))  # noqa: B023
            resume(tmp_path / f"{number}", task=task_of_wild_client())
            for table in ("rounds", "clients", "evals"):
                ours, theirs = (
                    pl.read_parquet(tmp_path / each / f"{table}.parquet") for each in ("whole", f"{number}")
                )
                assert ours.equals(theirs), (number, table)


def task_of_wild_client() -> fb.Task:
    """Client c3 has such features that its training diverges, and c5 too."""
    clients = dict(tinytask.load().clients)
    for name in ("c3", "c5"):
        clients[name] = (clients[name][0] * np.float32(1e4), clients[name][1])
    return tinytask.load(clients=clients, loss=tinytask.fourth_power, learning_rate=0.01)


class TestEverybody:
    @pytest.mark.parametrize("name", ["fedavg+wfa", "fedbalancer", "canter", "oort", "fedbalancer+late"])
    def test_the_run_ends_after_three_rounds(self, name: str) -> None:
        with pytest.raises(
            TrainingDiverged, match=r"no client sent a valid report in 3 rounds; round [34], client 'c\d'"
        ):
            fb.run(tinytask.load(loss=tinytask.fourth_power), name, rounds=500, settings={"learning_rate": 1000.0})

    @pytest.mark.parametrize("name", ["fedbuff", "fedasync", "fedcompass"])
    def test_an_asynchronous_run_ends_after_as_many_reports(self, name: str) -> None:
        with pytest.raises(TrainingDiverged, match=r"in [69] rounds; .*lower the learning rate \(now 1000\)"):
            fb.run(tinytask.load(loss=tinytask.fourth_power), name, rounds=500, settings={"learning_rate": 1000.0})

    @pytest.mark.parametrize("workers", [1, 2])
    def test_the_message_is_the_same_for_any_number_of_workers(self, workers: int) -> None:
        text = (
            "no client sent a valid report in 3 rounds; round 3, client 'c3': training diverged: the loss of sample 24 "
            "is inf; lower the learning rate (now 1000) or the clip_norm (now None)"
        )
        with pytest.raises(TrainingDiverged, match=re.escape(text)):
            fb.run(
                tinytask.load(loss=tinytask.fourth_power), "fedavg+wfa", workers=workers,
                settings={"learning_rate": 1000.0, "clip_norm": None},
            )  # fmt: skip

    def test_losses_beyond_the_bounds_end_it_as_well(self) -> None:
        """Clipped gradients keep the losses finite, but the server rejects every report."""
        with pytest.raises(
            TrainingDiverged, match=r"loss_high .*must be at most 1e\+07.*; try a smaller learning_rate"
        ):
            fb.run(
                tinytask.load(loss=tinytask.fourth_power), "fedavg+wfa", rounds=500,
                settings={"learning_rate": 1000.0, "clip_norm": 5.0},
            )  # fmt: skip

    def test_rounds_without_any_report_do_not_start_the_count_again(self) -> None:
        with pytest.raises(TrainingDiverged, match="in 3 rounds"):
            play("fedavg+1t", Diverges(*(f"c{number}" for number in range(8))), 50, settings={"clients_per_round": 2})


def test_a_client_whose_fine_tuning_diverges_is_evaluated_without_it(
    make_world: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbalancer.client.training import FineTuning
    from fedbalancer.experiments.rounds import personal_model

    world = make_world(Method("tuned").with_policies(train=FineTuning(epochs=1)))
    assert personal_model(world.engine, WEIGHTS, "c0", make_order()).tolist() == [2.0, 3.0]
    monkeypatch.setattr(world.executor, "train", lambda weights, works: [DivergedTraining("c0", "a loss is inf")])
    assert personal_model(world.engine, WEIGHTS, "c0", make_order()).tolist() == WEIGHTS.tolist()
    assert "fine-tuning of client 'c0' is left out of its evaluation: a loss is inf" in caplog.text


def test_an_interrupted_training_that_diverges_is_forgotten(
    make_world: Any, phone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbalancer.client.training import CachedTraining

    world = make_world(Method("cached").with_policies(train=CachedTraining(rounds=2)), [phone()])
    world.run("c0", round=1, deadline_s=8.5)
    assert world.engine.memory["c0"].state
    monkeypatch.setattr(
        world.executor, "train", lambda weights, works: [DivergedTraining(w.client, "x") for w in works]
    )
    (report,) = world.run("c0", round=2, deadline_s=8.5).reports
    assert (report.problem, world.engine.memory["c0"].state) == ("training diverged: x", {})
    assert world.run("c0", round=3, deadline_s=8.5).missing[0].why == "train"
    assert world.engine.memory["c0"].state == {}


def test_a_late_report_that_diverged_frees_its_place_when_it_arrives(make_world: Any, phone: Any) -> None:
    world = make_world(Method("fedavg").with_policies(work=AllOrNothing()), [phone(), phone(batch_s=5.0)])
    world.executor.train = lambda weights, works: [DivergedTraining(work.client, "x") for work in works]

    def run(number: int, clock_s: float, *cohort: str, deadline_s: float) -> Any:
        plan = RoundPlan(make_order(round=number, deadline_s=deadline_s), cohort, len(cohort), None, "joins")
        return world.engine.run(plan, WEIGHTS, clock_s)

    assert run(1, 0.0, "c1", deadline_s=20.0).under_way == ("c1",)
    result = run(2, 40.0, deadline_s=99.0)
    assert (result.under_way, result.up_bytes) == ((), 800)
    (report,) = result.reports
    assert (report.client, report.staleness, report.problem) == ("c1", 1, "training diverged: x")
