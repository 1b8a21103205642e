"""Clients report tags and conditions, decline rounds, and the server respects both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import make_context
from flower.phones import Phone, World
from flwr.app import Message

from fedbalancer.experiments.learned_fleet import learn
from fedbalancer.flower import balanced
from fedbalancer.flower.introduction import answer_greeting, client_tags
from fedbalancer.flower.messages import HELLO


class Conditional(Phone):
    """A client whose conditions depend on the time, and that may decline.

    Args:
        charging_at: Seconds from which on it is charging.
        declines: Rounds that it declines.
    """

    def __init__(self, number: int, charging_at: float = 0.0, declines: tuple[int, ...] = ()) -> None:
        super().__init__(number)
        self.charging_at, self.declines, self.greeted = charging_at, declines, 0

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        self.conditions = ["charging"] if sent_s >= self.charging_at else []
        if message.metadata.message_type != HELLO:
            return super().__call__(message, sent_s)
        self.greeted += 1
        reply = answer_greeting(
            message, self.context, len(self.y), lambda *_: [self.batch_s] * 10, clock=lambda: 0.0, tags=self.conditions
        )
        return [(sent_s + self.way_s, reply)]

    def train(self, message: Message) -> Message:
        work = balanced(message, self.context, size=len(self.y), clock=self, tags=self.conditions)
        if work.order.round in self.declines:
            return work.decline("battery at 5 %")
        return super().train(message)


def rows(folder: Path) -> list[tuple[int, str, str, str]]:
    table = pl.read_parquet(folder / "clients.parquet")
    return list(table.select("round", "client", "outcome", "why").iter_rows())


def test_a_declined_round_does_not_wait_and_suspends_nobody(tmp_path: Path) -> None:
    world = World(Phone(0), Conditional(1, declines=(2,)))
    world.start(3, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
    assert [row[1:] for row in rows(tmp_path / "mine") if row[0] == 2] == [
        ("c0", "completed", ""), ("c1", "declined", "battery at 5 %"),
    ]  # fmt: skip
    assert [row[2] for row in rows(tmp_path / "mine") if row[1] == "c1"] == ["completed", "declined", "completed"]
    assert [fields["why"] for fields in world.of("declined")] == ["battery at 5 %"]
    assert not world.of("sits out")


def test_clients_are_selected_by_tags_of_the_node_configuration(tmp_path: Path) -> None:
    phones = [Phone(number) for number in range(3)]
    phones[1].context.node_config["tags"] = "pixel+canary"
    phones[2].context.node_config["tags"] = "old"
    world = World(*phones)
    world.start(2, "fedavg+wfa[clients=Tagged(exclude='old')]", checkpoint_dir=tmp_path, run_key="mine")
    assert {row[1] for row in rows(tmp_path / "mine")} == {"c0", "c1"}
    assert [fields.get("tags") for fields in world.of("client introduced")] == [None, ["canary", "pixel"], ["old"]]
    learned = {device.id: device.tags for device in learn(tmp_path / "mine").fleet.devices}
    assert learned == {"c0": "", "c1": "canary+pixel", "c2": "old"}, "a forecast knows the tags"
    canary = World(*phones)
    canary.start(3, "fedavg+wfa[clients=Canary(rounds=2)]", checkpoint_dir=tmp_path, run_key="canary")
    assert [row[1] for row in rows(tmp_path / "canary") if row[0] < 3] == ["c1", "c1"]
    assert {row[1] for row in rows(tmp_path / "canary") if row[0] == 3} == {"c0", "c1", "c2"}


def test_a_round_waits_until_a_condition_holds(tmp_path: Path) -> None:
    """The server asks idle clients for their conditions again; they do not measure batches for it."""
    phone = Conditional(0, charging_at=900.0)
    world = World(phone, Conditional(1, charging_at=900.0))
    world.start(2, "fedavg+wfa[clients=Tagged(require='charging')]", checkpoint_dir=tmp_path, run_key="mine")
    rounds = pl.read_parquet(tmp_path / "mine" / "rounds.parquet")
    assert rounds["completed"].min() >= 1
    assert rounds["start_s"][0] >= 900.0, "the clock includes the wait"
    assert len(world.of("waiting for eligible clients")) == 1
    assert phone.greeted == 4, "at 0, 300, 600 and 900 seconds"
    assert world.of("tags changed")[0]["tags"] == ["charging"]


def test_a_server_waits_for_the_next_day_when_the_budget_is_used(tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1))
    world.start(2, "fedavg+wfa[clients=DailyBudget(rounds=1)]", checkpoint_dir=tmp_path, run_key="mine")
    rounds = pl.read_parquet(tmp_path / "mine" / "rounds.parquet")
    assert rounds["completed"].to_list() == [2, 2]
    assert rounds["start_s"][1] >= 86_400.0


def test_tags_come_from_the_node_configuration_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_TAGS", "tablet + canary")
    assert client_tags(make_context(1), ["charging"]) == ["canary", "charging", "tablet"]
    assert client_tags(make_context(1, tags="pixel"), ["pixel"]) == ["pixel"]


def test_tags_survive_a_resume(tmp_path: Path) -> None:
    phones: list[Any] = [Phone(0), Phone(1)]
    phones[1].context.node_config["tags"] = "old"
    options: dict[str, Any] = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    for number in (2, 4):
        World(*phones).start(number, "fedavg+wfa[clients=Tagged(exclude='old')]", **options)
    assert {row[1] for row in rows(tmp_path / "mine")} == {"c0"}
