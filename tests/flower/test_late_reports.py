"""Reports that come after their round, under methods that count them: each once, with its age, or never."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World, weights_of
from flwr.app import Array, ArrayRecord, Error, Message

from fedbalancer.client.live import LiveRound
from fedbalancer.client.round import ClientMemory
from fedbalancer.core.types import Order
from fedbalancer.methods.table import method
from fedbalancer.server.late import Joins


def outcomes(folder: Path) -> list[tuple[int, str, str]]:
    rows = pl.read_parquet(folder / "clients.parquet")
    return list(zip(rows["round"].to_list(), rows["client"].to_list(), rows["outcome"].to_list(), strict=True))


def of_client(folder: Path, client: str) -> list[tuple[int, str]]:
    return [(round, outcome) for round, name, outcome in outcomes(folder) if name == client]


def late_once(round: int, seconds: float) -> Phone:
    """A client whose report of one round is late."""
    phone = Phone(2, change=lambda reply: [(seconds if len(phone.orders) == round else 0.0, reply)])
    return phone


@pytest.mark.parametrize("name", ["fedavg+1t+late", "prox+1t+late", "fedbalancer+late", "refl", "canter+late"])
def test_a_late_report_joins_the_next_round_once(name: str, tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1), late_once(2, 40.0))
    result = world.start(16, name, checkpoint_dir=tmp_path, run_key="mine")
    rows = [(round, outcome) for round, outcome in of_client(tmp_path / "mine", "c2") if outcome != "completed"]
    assert rows, "it was late"
    assert [outcome for _, outcome in rows] == ["under way", "joined"] * (len(rows) // 2)
    for (sent, _), (came, _) in zip(rows[::2], rows[1::2], strict=True):
        asked = [told.order.round for told in world.phones[2].orders]
        assert not [round for round in asked if sent < round <= came], "who is under way is not asked"
    joined = Counter(client for _, client, outcome in outcomes(tmp_path / "mine") if outcome == "joined")
    assert Counter(fields["client"] for fields in world.of("late report")) == joined
    assert not world.of("late reply")
    assert sum(found["joined"] for found in result.train_metrics_clientapp.values()) == joined.total()


def test_a_late_report_is_discounted_by_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 50 samples times (1 + tau)^-1/2."""
    seen: list[tuple[float, int]] = []
    weighted = Joins.weighted

    def watched(late: Any, setup: Any, state: Any, reports: Any) -> Any:
        found = weighted(late, setup, state, reports)
        seen.extend((each.weight, each.staleness) for each in found if each.staleness)
        return found

    monkeypatch.setattr(Joins, "weighted", watched)
    World(Phone(0), Phone(1), late_once(2, 40.0)).start(12, "fedavg+1t+late")
    ((weight, age),) = seen
    assert age > 1
    assert weight == pytest.approx(50 * (1 + age) ** -0.5)


def test_without_late_only_its_times_are_used(tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1), late_once(2, 5.0))
    world.start(6, "fedavg+1t", checkpoint_dir=tmp_path, run_key="mine")
    assert [fields["client"] for fields in world.of("late reply")] == ["c2"]
    assert "joined" not in {outcome for _, outcome in of_client(tmp_path / "mine", "c2")}


def test_if_everybody_is_late_the_round_closes_with_the_next_report() -> None:
    """One client, always late: there is nobody left to ask, so every second round waits for it."""
    slow = Phone(0, change=lambda reply: [(60.0, reply)])
    world = World(slow)
    result = world.start(4, "fedavg+1t+late", measure_network=False)
    found = [(each["selected"], each["joined"]) for each in result.train_metrics_clientapp.values()]
    assert found == [(1, 0), (0, 1), (1, 0), (0, 1)]
    assert np.abs(weights_of(result)).max() > 0


def raised(reply: Message) -> Message:
    other = Message(Error(2, "it raised"), reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other


@pytest.mark.parametrize(("change", "why"), [(raised, "error"), (lambda reply: None, "silent")])
def test_a_client_at_work_that_fails_is_missing_once(change: Any, why: str, tmp_path: Path) -> None:
    def late_and_bad(reply: Message) -> Any:
        if len(bad.orders) != 2:
            return reply
        changed = change(reply)
        return None if changed is None else [(40.0, changed)]

    bad = Phone(2, change=late_and_bad)
    world = World(Phone(0), Phone(1), bad)
    strategy = world.strategy("fedavg+1t+late", checkpoint_dir=tmp_path, run_key="mine")
    strategy.start(world.grid, first_model(), num_rounds=20, timeout=100)  # the time to live of a message
    rows = Counter(outcome for _, outcome in of_client(tmp_path / "mine", "c2"))
    assert (rows["under way"], rows[why], rows["joined"]) == (1, 1, 0)
    assert len(bad.orders) > 2, "it is asked again afterwards"


def first_model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})


@pytest.mark.parametrize("buffer", [1, 2])
def test_fedbuff_steps_when_the_buffer_is_full(buffer: int, tmp_path: Path) -> None:
    phones = [Phone(0, batch_s=0.2), Phone(1, batch_s=0.5), Phone(2, batch_s=1.5), Phone(3, batch_s=4.0)]
    world = World(*phones)
    options = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    result = world.start(12, f"fedbuff[late=Buffered(buffer={buffer})]", **options)
    completed = [each["completed"] for each in result.train_metrics_clientapp.values()]
    assert completed == [buffer] * 12
    assert any(each["joined"] for each in result.train_metrics_clientapp.values())
    assert len(phones[0].orders) > len(phones[3].orders)
    rows = Counter((client, outcome) for _, client, outcome in outcomes(tmp_path / "mine"))
    for client in ("c0", "c1", "c2", "c3"):
        asked = len(phones[int(client[1])].orders)
        assert rows[client, "completed"] + rows[client, "joined"] <= asked
        assert rows[client, "joined"] <= rows[client, "under way"]


def test_fedcompass_orders_steps_so_that_clients_arrive_in_groups(tmp_path: Path) -> None:
    phones = [Phone(number, batch_s=0.05 * 2**number) for number in range(3)]
    world = World(*phones)
    world.start(
        14, "fedcompass[late.least=2,late.most=8]", checkpoint_dir=tmp_path, run_key="mine", clients_per_round=3
    )
    asked = [[next(iter(work.order.steps.values())) for work in phone.orders] for phone in phones]
    assert all(2 <= steps <= 8 for each in asked for steps in each)
    assert asked[0][0] == 8, "the fastest client opens the first group"
    assert asked[0][0] > asked[2][0], "a slower client of its group has fewer steps"
    assert len({len(each) for each in asked}) <= 2, "clients of a group start again together"
    assert not world.of("refill")


@pytest.mark.parametrize("name", ["fedbuff[late=Buffered(buffer=3)]", "pisces", "fedasync"])
def test_a_free_place_is_filled_at_once(name: str, tmp_path: Path) -> None:
    phones = [Phone(number, batch_s=0.1 * 2**number) for number in range(6)]
    world = World(*phones)
    world.start(10, name, checkpoint_dir=tmp_path, run_key="mine", clients_per_round=2)
    rounds = {fields["round"]: fields for fields in world.of("round")}
    refills = world.of("refill")
    # FedAsync steps after every report, so its places are filled with the next round.
    assert bool(refills) == (name != "fedasync")
    for fields in refills:
        (client,) = fields["clients"]
        assert client not in rounds[fields["round"]]["cohort"], "a client takes part once in a round"
    sent = Counter(f"c{number}" for number, phone in enumerate(phones) for _ in phone.orders)
    asked = Counter(client for _, client, outcome in outcomes(tmp_path / "mine") if outcome != "joined")
    assert asked == sent, "every order has one row in the round in which it was sent"
    started = {(number, client) for number, fields in rounds.items() for client in fields["cohort"]}
    started |= {(fields["round"], client) for fields in refills for client in fields["clients"]}
    rows = outcomes(tmp_path / "mine")
    for number in rounds:
        begun = sum(begun <= number for begun, _ in started)
        ended = sum(ended <= number for ended, _, outcome in rows if outcome != "under way")
        assert 0 <= begun - ended <= 2, "at most K are at work"


@pytest.mark.parametrize("name", ["fedavg+1t+late", "fedbuff"])
def test_after_a_crash_each_report_counts_at_most_once(name: str, tmp_path: Path) -> None:
    class Killed(Exception):
        """The ServerApp dies."""

    def dies(number: int, arrays: Any) -> None:
        if number == 3:
            raise Killed

    slow = Phone(2, change=lambda reply: [(40.0, reply)])
    phones, places = (Phone(0), Phone(1), slow), {"checkpoint_dir": tmp_path, "run_key": "mine"}
    with pytest.raises(Killed):
        World(*phones).start(9, name, evaluate_fn=dies, **places)
    again = World(*phones)
    again.start(9, name, **places)
    assert again.of("resumed")
    rows = Counter(of_client(tmp_path / "mine", "c2"))
    assert max(rows.values()) == 1
    counted = sum(outcome in ("completed", "joined") for _, outcome in of_client(tmp_path / "mine", "c2"))
    assert 0 < counted <= len(slow.orders)
    assert pl.read_parquet(tmp_path / "mine" / "rounds.parquet")["round"].to_list() == list(range(1, 10))


def test_a_client_learns_of_its_acceptance_when_its_report_joins() -> None:
    phone = late_once(2, 40.0)
    World(Phone(0), Phone(1), phone).start(16, "prox+1t+late")
    accepted = [(told.order.round, told.accepted_round) for told in phone.orders]
    assert accepted[1][0] == accepted[2][1], accepted


@pytest.mark.parametrize(("name", "batches"), [("fedavg+1t", 6), ("prox+1t", 2), ("prox+1t+batches", 1)])
def test_a_late_client_continues_until_it_has_a_result(name: str, batches: int) -> None:
    """An epoch has two batches of 10 s, and the deadline is after 7 s."""
    for late, done in ((True, batches), (False, 0 if "batches" not in name else 1)):

        class Ticking:
            at_s = 0.0

            def now_s(self) -> float:
                return self.at_s

            def computed(self, batches: float) -> None:
                self.at_s += 10.0 * batches

        order = Order(1, 0.0, 7.0, 3, 10, 0, learning_rate=0.1)
        live = LiveRound(
            method(name).client, order, "c0", 20, ClientMemory(), 10.0, budget_s=7.0, clock=Ticking(), began_s=0.0,
            late_counts=late,
        )  # fmt: skip
        for _ in live.batches():
            pass
        assert live.countable_batches(live.done) == done, late
