"""Reports that come after their round has closed: each counts once, in the round in which it comes."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_order, same
from experiments import tinytask
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.types import RoundPlan, RoundResult
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.state import PendingReports

# As in test_engine: an epoch has two batches of 1 s, download takes 2 s and upload 3 s, so five epochs end at 15 s.
FEDAVG = Method("fedavg").with_policies(work=AllOrNothing())
WEIGHTS = np.array([1.0, 2.0], dtype=np.float32)
WINDOW_S = 20.0
ASYNCHRONOUS = ("fedbuff", "fedasync", "ca2fl", "fadas", "pisces", "fedcompass")


def play(world: Any, round: int, clock_s: float, *cohort: str, late: Any = "joins", **changes: Any) -> RoundResult:
    quorum = changes.pop("quorum", len(cohort))
    order = make_order(round=round, **changes)
    return world.engine.run(RoundPlan(order, tuple(sorted(cohort)), quorum, None, late), WEIGHTS, clock_s)


def said(result: RoundResult) -> list[tuple[str, int]]:
    return [(report.client, report.staleness) for report in result.reports]


class TestJoins:
    def test_who_misses_the_deadline_joins_the_round_in_which_it_comes(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=5.0)])  # c1 is done after 55 s
        first = play(world, 1, 0.0, "c0", "c1", deadline_s=20.0)
        assert (said(first), first.seconds, first.under_way) == ([("c0", 0)], 20.0, ("c1",))
        assert [(each.client, each.why, each.timings.total_s) for each in first.missing] == [("c1", "under way", 0.0)]
        second = play(world, 2, 40.0, "c0", deadline_s=10.0)  # from 60 to 70 s; c1 comes at 75 s
        assert (said(second), second.under_way) == ([], ("c0", "c1"))
        third = play(world, 3, 70.0, "c0", deadline_s=99.0)
        assert ("c1", 2) in said(third)
        assert third.under_way == ()
        (late,) = [report for report in third.reports if report.client == "c1"]
        assert (late.timings.train_s, late.timings.total_s, late.epochs) == (50.0, 55.0, 5.0)

    def test_it_is_trained_from_the_model_that_it_was_sent_and_once(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=5.0)])
        play(world, 1, 0.0, "c0", "c1", deadline_s=20.0)
        play(world, 2, 40.0, "c0", deadline_s=90.0)
        assert [work.client for work in world.executor.trained] == ["c0", "c1", "c0"]

    def test_who_is_under_way_is_not_available(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=5.0), phone()])
        play(world, 1, 0.0, "c0", "c1", deadline_s=20.0)
        assert world.engine.available(40.0).tolist() == [0, 2]
        play(world, 2, 40.0, "c0", deadline_s=99.0)
        assert world.engine.available(99.0).tolist() == [0, 1, 2]

    def test_who_is_after_the_quorum_joins_too(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=2.0)])
        first = play(world, 1, 0.0, "c0", "c1", deadline_s=math.inf, quorum=1)
        assert (said(first), first.under_way) == ([("c0", 0)], ("c1",))
        second = play(world, 2, 15.0 + WINDOW_S, "c0", deadline_s=math.inf)  # c1 came at 45 s, within the window
        assert said(second) == [("c0", 0), ("c1", 1)]
        assert second.seconds == 15.0  # as long as without it

    def test_with_nobody_to_ask_the_round_waits_for_the_next_that_comes(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(batch_s=5.0), phone(batch_s=9.0)])
        play(world, 1, 0.0, "c0", "c1", deadline_s=10.0)  # they come at 75 and 115 s
        second = play(world, 2, 30.0, deadline_s=10.0)
        assert (said(second), second.seconds, second.under_way) == ([("c0", 1)], 25.0, ("c1",))

    def test_one_that_will_never_come_is_missing(self, make_world: Any, away: Any) -> None:
        world = make_world(FEDAVG, availability=away({"c0": (25.0, math.inf)}))
        first = play(world, 1, 0.0, "c0", "c1", deadline_s=10.0)
        assert {each.client: each.why for each in first.missing} == {"c0": "unavailable", "c1": "under way"}

    def test_what_is_lost_stays_lost(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=5.0)])
        first = play(world, 1, 0.0, "c0", "c1", late="lost", deadline_s=20.0)
        assert ([each.why for each in first.missing], first.under_way) == (["train"], ())
        assert world.engine.snapshot().keys() == make_world(FEDAVG).engine.snapshot().keys()

    @pytest.mark.parametrize(
        ("work", "deadline_s", "batches"),
        [
            (AllOrNothing(), 10.0, 10), (WholeEpochs(), 6.0, 6), (WholeEpochs(), 3.0, 4), (WholeEpochs(), 4.0, 2),
            (WholeBatches(), 5.5, 6), (WholeBatches(), 3.0, 1), (WholeBatches(), 1.0, 1),
        ],
    )  # fmt: skip
    def test_who_cannot_make_it_does_what_fits_by_a_multiple_of_the_deadline(
        self, make_world: Any, work: Any, deadline_s: float, batches: int
    ) -> None:
        world = make_world(Method("mine").with_policies(work=work))
        play(world, 1, 0.0, "c0", deadline_s=deadline_s)
        assert [done.batches for done in world.executor.trained] == [batches]


class TestCounts:
    def test_a_step_closes_with_the_buffer_whenever_its_reports_were_sent_for(
        self, make_world: Any, phone: Any
    ) -> None:
        phones = [phone(), phone(batch_s=2.0), phone(batch_s=3.0), phone(batch_s=9.0)]  # 15, 25, 35 and 95 s
        world = make_world(FEDAVG, phones, window_s=0.0)
        everybody = {"late": "counts", "deadline_s": math.inf, "quorum": 2}
        first = play(world, 1, 0.0, "c0", "c1", "c2", "c3", **everybody)
        assert (said(first), first.seconds, first.under_way) == ([("c0", 0), ("c1", 0)], 25.0, ("c2", "c3"))
        second = play(world, 2, 25.0, "c0", "c1", **everybody)  # c2 at 10, c0 at 15 s
        assert (said(second), second.seconds, second.under_way) == ([("c0", 0), ("c2", 1)], 15.0, ("c1", "c3"))

    def test_one_that_came_while_clients_were_selected_counts_at_once(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=2.0), phone()])
        play(world, 1, 0.0, "c0", "c1", late="counts", deadline_s=math.inf, quorum=1)
        second = play(world, 2, 35.0, "c2", late="counts", deadline_s=math.inf, quorum=1)
        assert (said(second), second.seconds, second.under_way) == ([("c1", 1)], 0.0, ("c2",))

    def test_a_deadline_closes_a_step_too(self, make_world: Any, phone: Any) -> None:
        world = make_world(FEDAVG, [phone(), phone(batch_s=5.0)], window_s=0.0)
        first = play(world, 1, 0.0, "c0", "c1", late="counts", deadline_s=20.0, quorum=2)
        assert (said(first), first.seconds) == ([("c0", 0)], 20.0)
        second = play(world, 2, 20.0, late="counts", deadline_s=20.0, quorum=2)
        assert (said(second), second.seconds) == ([("c1", 1)], 35.0), "a step needs a report"


class TestRefill:
    """Places that become free are filled at once: 15, 25, 35 and 95 s for c0 to c3, and 15 s for c4 and c5."""

    def world(self, make_world: Any, phone: Any, **options: Any) -> Any:
        phones = [phone(), phone(batch_s=2.0), phone(batch_s=3.0), phone(batch_s=9.0), phone(), phone()]
        return make_world(FEDAVG, phones, window_s=0.0, **options)

    def step(self, world: Any, number: int, clock_s: float, cohort: str, reserve: str, **changes: Any) -> RoundResult:
        order = make_order(round=number, deadline_s=changes.pop("deadline_s", math.inf))
        plan = RoundPlan(order, tuple(cohort.split()), changes.pop("quorum", 3), late="counts",
                         concurrency=changes.pop("concurrency", 2), reserve=tuple(reserve.split()))  # fmt: skip
        return world.engine.run(plan, WEIGHTS, clock_s)

    def test_the_next_of_the_reserve_starts_when_a_report_arrives(self, make_world: Any, phone: Any) -> None:
        world = self.world(make_world, phone)
        # c0 at 15 s, c1 at 25 s, and c4, which started at 15 s, at 30 s; c2, started at 25 s, would arrive at 60 s.
        first = self.step(world, 1, 0.0, "c0 c1", "c4 c2 c5 c3")
        assert (said(first), first.seconds) == ([("c0", 0), ("c1", 0), ("c4", 0)], 30.0)
        assert (first.under_way, first.plan.cohort, first.plan.reserve) == (
            ("c2",), ("c0", "c1", "c2", "c4"), ("c5", "c3"),
        )  # fmt: skip
        assert [each.client for each in first.missing] == ["c2"]
        assert [report.timings.paused_s for report in first.reports] == [0.0, 0.0, 0.0]
        # c2 arrives 30 s into the second step, after c0 (15 s) and c5 (15 + 15 s, a tie that c2 wins by its id).
        second = self.step(world, 2, 30.0, "c0", "c5 c2 c4")
        assert (said(second), second.seconds) == ([("c0", 0), ("c2", 1), ("c5", 0)], 30.0)
        assert second.under_way == ("c4",), "c2 is not asked again in the round in which it reports"

    def test_everybody_is_trained_from_the_model_of_the_step_in_which_it_starts(
        self, make_world: Any, phone: Any
    ) -> None:
        world = self.world(make_world, phone)
        self.step(world, 1, 0.0, "c0 c1", "c4 c2 c5 c3")
        self.step(world, 2, 30.0, "c0", "c5 c2 c4")
        assert [work.client for work in world.executor.trained] == ["c0", "c1", "c2", "c4", "c0", "c4", "c5"]

    def test_the_reserve_skips_who_is_away_until_it_is_back(self, make_world: Any, phone: Any, away: Any) -> None:
        absent = {"c4": (0.0, 1000.0), "c5": (0.0, 30.0), "c2": (0.0, 1000.0), "c3": (0.0, 1000.0)}
        world = self.world(make_world, phone, availability=away(absent), check_in_s=6.0)
        # The place of c0 is free from 15 s on. It looks again at 21 s, and both places do at 25 s.
        first = self.step(world, 1, 0.0, "c0 c1", "c4 c5 c2 c3")
        assert (said(first), first.seconds) == ([("c0", 0), ("c1", 0)], 25.0), "nobody is left to wait for"
        second = self.step(world, 2, 25.0, "c1", "c5 c2", quorum=2)
        assert (said(second), second.seconds) == ([("c1", 0), ("c5", 0)], 25.0)

    def test_no_place_is_filled_after_the_step(self, make_world: Any, phone: Any) -> None:
        for quorum, started in ((1, 2), (2, 3), (3, 4)):
            result = self.step(self.world(make_world, phone), 1, 0.0, "c0 c1", "c4 c2 c5", quorum=quorum)
            assert len(result.plan.cohort) == started

    def test_a_deadline_ends_the_step_and_the_first_report_if_there_is_none(self, make_world: Any, phone: Any) -> None:
        world = self.world(make_world, phone)
        first = self.step(world, 1, 0.0, "c0 c1", "c4 c2 c5", quorum=9, deadline_s=16.0)
        assert (said(first), first.seconds, first.under_way) == ([("c0", 0)], 16.0, ("c1", "c4"))
        late = self.step(self.world(make_world, phone), 1, 0.0, "c1 c2", "c4", quorum=9, deadline_s=16.0)
        assert (said(late), late.seconds, late.under_way) == ([("c1", 0)], 25.0, ("c2",))

    def test_with_nobody_online_the_clock_moves_by_the_check_in(self, make_world: Any, phone: Any, away: Any) -> None:
        world = self.world(make_world, phone, availability=away({f"c{row}": (0.0, 50.0) for row in range(6)}))
        result = self.step(world, 1, 0.0, "", "c0 c1")
        assert (said(result), result.seconds, result.plan.cohort) == ([], 20.0, ())


@pytest.mark.parametrize("most", [1, 3])
def test_a_place_is_never_empty_between_two_steps(most: int) -> None:
    task = tinytask.load()
    spec = RunSpec(task=task, method="fedbuff", seed=1, settings={"clients_per_round": most}, timing_only=True)
    world = build(spec, task)
    state = world.server.init(world.executor.initial_weights(1))
    clock_s, busy_s, seconds = 0.0, 0.0, 0.0
    for after, result in rounds(world.server, world.engine, state, lambda s: s.round >= 40):
        assert len(result.under_way) == most - 1, "all places but that of the report that closed the step"
        assert result.window_s == 0
        busy_s += sum(report.timings.total_s for report in result.reports)
        seconds, clock_s = seconds + result.seconds, after.clock_s
    assert clock_s == pytest.approx(seconds)
    at_work_s = sum(each.arrives_s - clock_s for each in world.engine.pending)  # still to do
    spent_s = sum(each.report.timings.total_s for each in world.engine.pending) - at_work_s
    assert busy_s + spent_s == pytest.approx(most * clock_s), "every second of every place is work"


def test_a_snapshot_brings_every_pending_report_back(make_world: Any, phone: Any) -> None:
    world = make_world(FEDAVG, [phone(), phone(batch_s=5.0), phone(batch_s=7.0)])
    play(world, 1, 0.0, "c0", "c1", "c2", deadline_s=20.0)
    again = make_world(FEDAVG)
    again.engine.restore(world.engine.snapshot())
    assert len(again.engine.pending) == 2
    for mine, theirs in zip(again.engine.pending, world.engine.pending, strict=True):
        assert same(mine, theirs)
    assert PendingReports.from_arrays({}, world.engine.ledger) == ()


@given(
    st.sampled_from([*ASYNCHRONOUS, "refl", "fedavg+1t+late", "prox+1t+batches+late", "fedavg+spc+late", "oort+late"]),
    st.integers(0, 2**20),
    st.integers(1, 6),
)
@settings(max_examples=15, deadline=None)
def test_every_report_counts_exactly_once_and_nobody_is_asked_twice_at_a_time(name: str, seed: int, most: int) -> None:
    spec = RunSpec(task=tinytask.load(), method=name, seed=seed, settings={"clients_per_round": most}, timing_only=True)
    world = build(spec, tinytask.load())
    state = world.server.init(world.executor.initial_weights(seed))
    asked: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    busy: set[str] = set()
    for after, result in rounds(world.server, world.engine, state, lambda s: s.round >= 30):
        assert not busy & set(result.plan.cohort)
        if name in ASYNCHRONOUS:
            assert len(result.under_way) <= most
        asked.update(result.plan.cohort)
        ended.update(report.client for report in result.reports)
        ended.update(missing.client for missing in result.missing if missing.why != "under way")
        for report in result.reports:
            assert (report.staleness > 0) == (report.client in busy)
        busy = set(result.under_way)
        assert asked == ended + Counter(busy)
        taken = after.ledger.participations - state.ledger.participations
        assert taken.sum() == len(result.reports)
        assert taken.max(initial=0) <= 1
        assert after.clock_s > state.clock_s
        state = after


@pytest.mark.parametrize(
    "name",
    [*ASYNCHRONOUS, "refl", "fedavg+1t+late", "fedbalancer+late[deadline=.1T]", "fedavg+graddrop+late[deadline=.4T]"],
)
def test_a_run_stopped_with_work_under_way_resumes_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    task = tinytask.load()
    spec = RunSpec(task=task, method=name, seed=3, rounds=12, settings={"clients_per_round": 4, "checkpoint_s": 0})
    execute(spec, tmp_path / "whole")
    seen: list[int] = []
    stopped = execute(
        spec, tmp_path / "cut", progress=lambda p: seen.append(p.round), stopped=lambda: max(seen, default=0) >= 1
    )
    assert stopped.status == "stopped"
    state = max((tmp_path / "cut" / "checkpoint").glob("step-*/state.json"))
    assert any("pending_" in array for array in json.loads(state.read_bytes())["body"]["arrays"]["names"])
    assert resume(tmp_path / "cut", task=tinytask.load()).status == "done"
    for file in ("rounds.parquet", "clients.parquet", "evals.parquet", "model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
