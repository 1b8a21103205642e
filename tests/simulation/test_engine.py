"""Rounds on the virtual clock: who is in time, when the round closes, and what is recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builders import names, same
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.types import TrainResult
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.devices import Network, Traces, resolve_latency
from fedbalancer.simulation.devices import Phones as Devices
from fedbalancer.simulation.state import seen_losses

# Phones train a batch in 1 s, download in 2 s and upload in 3 s; clients have 20 samples. An epoch has two batches, so
# five epochs end after 2 + 10 + 3 = 15 s.
FEDAVG = Method("fedavg").with_policies(work=AllOrNothing())
PROX = Method("prox").with_policies(work=WholeEpochs(), mu=0.1)
BATCHES = Method("batches").with_policies(work=WholeBatches())


class OneByOne:
    """A device model or an availability that knows one client at a time."""

    def __init__(self, whole: Any) -> None:
        for name in ("draw", "expected_network_s", "sample_batch_s", "is_available", "elapsed_s"):
            if hasattr(whole, name):
                setattr(self, name, getattr(whole, name))


class TestWhoMakesIt:
    @pytest.mark.parametrize(
        ("deadline_s", "why"), [(1.9, "download"), (11.9, "train"), (14.9, "upload"), (15.0, None), (math.inf, None)]
    )
    def test_all_or_nothing_fails_in_the_phase_in_which_the_deadline_passes(
        self, make_world: Any, deadline_s: float, why: str | None
    ) -> None:
        result = make_world(FEDAVG).run("c0", deadline_s=deadline_s)
        assert [missing.why for missing in result.missing] == ([why] if why else [])
        assert [report.client for report in result.reports] == ([] if why else ["c0"])

    @pytest.mark.parametrize(
        ("deadline_s", "epochs"), [(6.9, 0), (7.0, 1), (8.9, 1), (9.0, 2), (14.9, 4), (15.0, 5), (99.0, 5)]
    )
    def test_whole_epochs_trains_as_many_as_fit(self, make_world: Any, deadline_s: float, epochs: int) -> None:
        world = make_world(PROX)
        result = world.run("c0", deadline_s=deadline_s)
        assert [report.epochs for report in result.reports] == ([epochs] if epochs else [])
        assert [work.batches for work in world.executor.trained] == ([2 * epochs] if epochs else [])

    def test_whole_batches_stops_within_an_epoch_and_counts_only_what_was_seen(self, make_world: Any) -> None:
        world = make_world(BATCHES)
        result = world.run("c0", deadline_s=6.5)  # one batch of ten samples
        report = result.reports[0]
        assert (report.epochs, report.weight, report.summary.trained) == (0.5, 10.0, 10)
        assert report.summary.loss_sum == sum(10.0 + i for i in range(10))
        losses = world.engine.memory["c0"].losses
        assert losses[:10].tolist() == [10.0 + i for i in range(10)]
        assert np.isnan(losses[10:]).all()

    def test_a_report_says_where_the_seconds_went(self, make_world: Any) -> None:
        timings = make_world(PROX).run("c0", deadline_s=9.0).reports[0].timings
        assert (timings.download_s, timings.forward_s, timings.train_s, timings.upload_s) == (2.0, 0.0, 4.0, 3.0)
        assert (timings.paused_s, timings.total_s) == (0.0, 9.0)

    def test_a_client_that_will_not_make_it_is_never_trained(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=9.0), phone(upload_s=99.0)])
        result = world.run("c0", "c1", "c2", deadline_s=20.0)
        assert [work.client for work in world.executor.trained] == ["c0"]
        assert {missing.client: missing.why for missing in result.missing} == {"c1": "train", "c2": "upload"}

    def test_reports_and_missing_are_in_order_of_client_id(self, make_world: Any, phone: Any) -> None:
        phones = [phone(download_s=8.0), phone(batch_s=9.0), phone(), phone(batch_s=8.0)]
        result = make_world(FEDAVG, phones).run("c0", "c1", "c2", "c3", deadline_s=30.0)
        assert [report.client for report in result.reports] == ["c0", "c2"]
        assert [missing.client for missing in result.missing] == ["c1", "c3"]

    def test_every_client_is_told_its_work(self, make_world: Any) -> None:
        world = make_world(PROX)
        world.run("c0", "c1", deadline_s=15.0, round=4, seed=9)
        first, second = world.executor.trained
        assert first.indices.tolist() == list(range(20))
        assert (first.batches, first.batch_size) == (10, 10)
        assert (first.learning_rate, first.mu, first.clip_norm) == (0.1, 0.1, 5.0)
        assert first.seed != second.seed

    def test_devices_are_drawn_once_a_client_and_round_for_the_bytes_that_travel(self, make_world: Any) -> None:
        world = make_world(FEDAVG)
        world.run("c0", "c2", round=3)
        assert world.devices.asked == [("c0", 3, 800, 800), ("c2", 3, 800, 800)]

    def test_columns_of_devices_and_availability_give_what_asking_each_client_gives(
        self, make_world: Any, phone: Any
    ) -> None:
        size, phones = (25, 40, 60, 7, 90, 33), Devices(0, resolve_latency("femnist"), Network(0))
        traces = Traces({"a": np.array([[0.0, 40.0], [70.0, 90.0]]), "b": np.array([[10.0, 100.0]])}, 100.0)
        rounds = []
        for hidden in (False, True):
            world = make_world(PROX, [phone()] * len(size), size)
            there = traces.assign(world.engine.ledger.clients, seed=2)
            world.engine.devices = OneByOne(phones) if hidden else phones
            world.engine.availability = OneByOne(there) if hidden else there
            present = [world.engine.available(clock_s) for clock_s in (0.0, 37.0, 1e6)]
            results = [world.run(*names(6), deadline_s=25.0, round=r, clock_s=9.5 * r) for r in range(1, 9)]
            rounds.append((present, results))
        assert same(*rounds)
        assert len({len(result.reports) for result in rounds[0][1]}) > 1


class TestClosing:
    def test_ends_early_when_everybody_is_in(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(upload_s=7.0)])
        assert world.run("c0", "c1", deadline_s=100.0).seconds == 19.0

    def test_lasts_until_the_deadline_when_somebody_failed(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=50.0)])
        assert world.run("c0", "c1", deadline_s=100.0).seconds == 100.0

    def test_clients_cut_to_fewer_epochs_do_not_hold_the_round_open(self, make_world: Any, phone: Any) -> None:
        world = make_world(PROX, [phone(), phone(batch_s=2.0)])  # the second: 2 + 4 e + 3
        assert world.run("c0", "c1", deadline_s=20.0).seconds == 17.0

    def test_a_quorum_closes_at_its_last_report_and_the_rest_are_late(self, make_world: Any, phone: Any) -> None:
        phones = [phone(upload_s=upload_s) for upload_s in (9.0, 1.0, 5.0, 7.0)]
        world = make_world(FEDAVG, phones)
        result = world.run("c0", "c1", "c2", "c3", quorum=2, deadline_s=math.inf)
        assert [report.client for report in result.reports] == ["c1", "c2"]
        assert [(missing.client, missing.why) for missing in result.missing] == [("c0", "late"), ("c3", "late")]
        assert result.seconds == 17.0
        assert [work.client for work in world.executor.trained] == ["c1", "c2"]

    def test_a_full_quorum_does_not_wait_for_the_deadline(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=50.0), phone(upload_s=7.0)])
        assert world.run("c0", "c1", "c2", quorum=2, deadline_s=100.0).seconds == 19.0

    def test_equal_times_are_settled_by_client_id(self, make_world: Any) -> None:
        result = make_world(FEDAVG).run("c0", "c1", "c2", quorum=2, deadline_s=math.inf)
        assert [report.client for report in result.reports] == ["c0", "c1"]

    def test_a_quorum_that_the_deadline_cuts_short_lasts_until_the_deadline(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=50.0), phone(batch_s=50.0)])
        result = world.run("c0", "c1", "c2", quorum=2, deadline_s=40.0)
        assert (len(result.reports), result.seconds) == (1, 40.0)

    def test_nobody_in_time_takes_the_whole_deadline(self, make_world: Any) -> None:
        world = make_world(FEDAVG)
        result = world.run("c0", "c1", deadline_s=10.0)
        assert (result.reports, result.seconds, world.executor.trained) == ((), 10.0, [])

    @pytest.mark.parametrize("deadline_s", [50.0, math.inf])
    def test_an_empty_cohort_takes_no_time_but_the_window(self, make_world: Any, deadline_s: float) -> None:
        result = make_world(FEDAVG).run(deadline_s=deadline_s)
        assert (result.reports, result.missing, result.seconds, result.window_s) == ((), (), 0.0, 20.0)


class TestMemory:
    def test_latencies_of_failed_rounds_are_remembered_by_the_client_but_not_by_the_server(
        self, make_world: Any, phone: Any
    ) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=9.0)])
        world.devices.phones = {"c0": phone(batch_s=0.5), "c1": phone(batch_s=20.0)}
        result = world.run("c0", "c1", deadline_s=30.0)
        assert world.engine.memory["c0"].batch_s() == pytest.approx((1.0 + 0.5) / 2)
        assert world.engine.memory["c1"].batch_s() == pytest.approx((9.0 + 20.0) / 2)
        after = world.engine.ledger.record(result)
        assert after.batch_s.tolist() == pytest.approx([(1.0 + 0.5) / 2, 9.0])

    def test_the_loss_list_of_a_failed_client_is_left_alone(self, make_world: Any) -> None:
        world = make_world(FEDAVG)
        world.run("c0", deadline_s=99.0)
        before = world.engine.memory["c0"].losses
        world.run("c0", deadline_s=10.0)
        assert world.engine.memory["c0"].losses is before

    def test_a_snapshot_brings_everything_back(self, make_world: Any) -> None:
        world, twin = make_world(BATCHES), make_world(BATCHES)
        world.run("c0", "c2", deadline_s=6.5)
        world.run("c1", deadline_s=1.0)
        twin.engine.restore(world.engine.snapshot())
        assert same(twin.engine.snapshot(), world.engine.snapshot())
        ours, theirs = (w.run("c0", "c1", "c2", deadline_s=8.5, round=2) for w in (world, twin))
        assert same(ours, theirs)

    def test_the_same_round_gives_the_same_bytes(self, make_world: Any) -> None:
        ours, theirs = (make_world(BATCHES.with_policies(mu=0.5)).run("c0", "c1", deadline_s=8.5) for _ in range(2))
        assert same(ours, theirs)


def test_evaluation_is_the_executors(make_world: Any) -> None:
    assert make_world(FEDAVG).engine.evaluate(np.zeros(2, dtype=np.float32)).samples == 7


def test_the_clock_moves_although_nobody_is_there() -> None:
    spec = RunSpec(task=tinytask.load(), method="fedavg+wfa", settings={"window_s": 0.0}, timing_only=True)
    world = build(spec, tinytask.load())
    never = {client: np.array([[86_000.0, 86_400.0]]) for client in world.engine.ledger.clients}
    world.engine.availability = Traces(never, 86_400.0)
    state = world.server.init(world.executor.initial_weights(0))
    clocks = [after.clock_s for after, _ in rounds(world.server, world.engine, state, lambda s: s.clock_s >= 5)]
    assert clocks == [1.0, 2.0, 3.0, 4.0, 5.0]


COLUMNS = ["seen_loss_p10", "seen_loss_p50", "seen_loss_p90"]


def trained(*losses: float) -> TrainResult:
    return TrainResult("ann", np.zeros(1, dtype=np.float32), np.arange(len(losses)), np.array(losses))


@given(st.lists(st.lists(st.floats(0.0, 50.0), max_size=20), max_size=5))
def test_it_is_of_all_samples_together_whoever_has_them(parts: list[list[float]]) -> None:
    every = [loss for part in parts for loss in part]
    found = seen_losses([trained(*part) for part in parts])
    assert found == seen_losses([trained(*every)])
    if not every:
        assert found is None
        return
    assert found is not None
    assert min(every) <= found[0] <= found[1] <= found[2] <= max(every)
    assert found[1] == pytest.approx(float(np.median(every)))


def test_what_is_not_a_number_is_left_out() -> None:
    assert seen_losses([trained(float("nan"), 1.0, float("inf"))]) == (1.0, 1.0, 1.0)


def test_a_run_records_it_and_the_threshold_shows_in_it(tmp_path: Path) -> None:
    fb.run("synthetic", method="fedbalancer[w=2]", rounds=24, out=tmp_path / "run")
    rounds = pl.read_parquet(tmp_path / "run" / "rounds.parquet")
    trains = rounds.filter(pl.col("completed") > 0)
    assert trains.height
    assert trains.select(COLUMNS).null_count().sum_horizontal().item() == 0
    assert trains.filter(pl.col("seen_loss_p10") > pl.col("seen_loss_p90")).height == 0
    before = trains.filter(pl.col("loss_threshold") == 0)["seen_loss_p10"].mean()
    after = trains.filter(pl.col("loss_threshold") > 0.1)["seen_loss_p10"].mean()
    assert after > 2 * before, "samples that teach nothing any more are left out"  # type: ignore[operator]


def test_a_run_of_the_clock_alone_has_none() -> None:
    found = fb.run("synthetic", method="fedavg+1t", rounds=3, timing_only=True)
    assert found.rounds.select(COLUMNS).null_count().sum_horizontal().item() == 3 * found.rounds.height
