"""Clients that cannot meet the deadline: their transport is planned for, and they are not asked again and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="flwr is not installed")

from builders import make_ledger, make_report, make_setup
from flower.phones import Phone, World
from flwr.app import Message

from fedbalancer.core.types import FailedClient, Order, RoundPlan, RoundResult
from fedbalancer.flower.failures import FOR_TIME, MOST_ROUNDS, PATIENCE, Pauses
from fedbalancer.flower.messages import HELLO
from fedbalancer.server.deadline import FixedDeadline, LimitedDeadline, PeakDeadline, UsefulWork

OUTCOMES = ("completed", *FOR_TIME, "error", "invalid", "late", "unavailable")


class Linked(Phone):
    """A phone whose messages with a model take `link_s` longer than its greeting."""

    def __init__(self, number: int, link_s: float, **options: Any) -> None:
        super().__init__(number, **options)
        self.link_s = link_s

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        replies = super().__call__(message, sent_s)
        link_s = 0.0 if message.metadata.message_type == HELLO else self.link_s
        return [(at_s + link_s, reply) for at_s, reply in replies]


def mixed() -> World:
    """Two fast clients, one that trains slowly, one with a slow link."""
    return World(Phone(0, 0.05), Phone(1, 0.1), Phone(2, 2.5), Linked(3, 14.0, batch_s=0.1))


def result(number: int, outcomes: dict[str, str]) -> RoundResult:
    order = Order(round=number, loss_threshold=0.0, deadline_s=20.0, epochs=1, batch_size=10, seed=0)
    reports = tuple(make_report(client) for client, how in outcomes.items() if how == "completed")
    missing = tuple(FailedClient(client, how) for client, how in outcomes.items() if how != "completed")
    return RoundResult(RoundPlan(order, tuple(outcomes), len(outcomes)), reports, missing, 20.0)


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.booleans()), max_size=60))
def test_a_pause_follows_misses_in_a_row_and_ends_with_a_report(rounds: list[tuple[str, bool]]) -> None:
    """`slow` is asked whenever it may be; `fast` is there in every round, and reports in some."""
    pauses, misses = Pauses(), 0
    for number, (outcome, fast) in enumerate(rounds, start=1):
        if "slow" not in pauses.active(["fast", "slow"], number - 1):
            continue
        paused = pauses.update(result(number, {"slow": outcome, "fast": "completed" if fast else "error"}))
        if outcome == "completed":
            misses = 0
        elif outcome in FOR_TIME and fast:
            misses += 1
        counted = outcome in FOR_TIME and fast and misses >= PATIENCE
        assert paused == ({"slow": number + min(2 ** (misses - PATIENCE), MOST_ROUNDS)} if counted else {})


def test_everybody_takes_part_if_everybody_is_paused() -> None:
    pauses = Pauses()
    for number in (1, 2):
        pauses.update(result(number, {"a": "train", "b": "silent", "c": "completed"}))
    assert pauses.active(["a", "b", "c"], 2) == ["c"]
    assert pauses.active(["a", "b"], 2) == ["a", "b"]


def test_a_client_that_cannot_finish_is_not_ordered_again_and_again() -> None:
    world = mixed()
    result = world.start(20, settings={"w": 5})
    fast, also_fast, slow_phone, slow_link = (len(phone.orders) for phone in world.phones)
    assert fast == also_fast == 20
    assert max(slow_phone, slow_link) <= 8
    assert {fields["client"] for fields in world.of("paused")} == {"c2", "c3"}
    assert sum(result.train_metrics_clientapp[n]["selected"] for n in range(1, 21)) == sum(map(len, orders(world)))


def orders(world: World) -> list[list[Any]]:
    return [phone.orders for phone in world.phones]


def test_late_reports_of_slow_clients_count_so_nobody_is_paused() -> None:
    world = mixed()
    result = world.start(20, "fedbalancer+late", settings={"w": 5})
    assert not world.of("paused")
    counted = sum(result.train_metrics_clientapp[n]["completed"] for n in range(1, 21))
    asked = sum(map(len, orders(world)))
    assert asked - counted <= 2, "but for those under way at the end"
    assert min(map(len, orders(world))) >= 5


def test_pauses_outlast_the_server(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine", "settings": {"w": 5}}
    whole = mixed()
    whole.start(16, settings={"w": 5})
    first = mixed()
    first.start(8, **places)
    again = World(*first.phones)
    again.start(16, **places)
    assert abs(len(first.phones[2].orders) - len(whole.phones[2].orders)) <= 1


@pytest.mark.parametrize("name", ["fedavg+1t", "fedbalancer", "prox+1t"])
def test_transport_that_a_greeting_could_not_show_is_in_the_next_deadline(name: str) -> None:
    """The first deadline knows only greetings, which carry no model. Half of the clients meet it, so that nothing else
    makes it longer: DDL-E starts when more than half have reported."""
    near = [Phone(0, batch_s=0.05), Phone(1, batch_s=0.05)]
    world = World(*near, Linked(2, 12.0, batch_s=0.05), Linked(3, 12.0, batch_s=0.05))
    result = world.start(6, name)
    known = World(*near, Phone(2, batch_s=0.05, way_s=14.0), Phone(3, batch_s=0.05, way_s=14.0))
    known.start(1, name)
    deadlines, (wanted,) = ([fields["deadline_s"] for fields in each.of("round")] for each in (world, known))
    assert result.train_metrics_clientapp[1]["completed"] >= 1
    assert deadlines[0] < wanted - 5
    assert max(deadlines) >= wanted - 1


def test_a_deadline_policy_keeps_what_it_knows_when_t_changes() -> None:
    setup, longer = make_setup(make_ledger()), make_setup(make_ledger(network_s=100.0))
    peak = PeakDeadline()
    known = replace(peak.init(setup), guard_s=10.0)
    assert peak.retime(longer, known) == replace(peak.init(longer), guard_s=10.0)
    limited = LimitedDeadline(peak)
    state = replace(limited.init(setup), last_s=33.0)
    assert limited.retime(longer, state).last_s == 33.0
    assert limited.retime(longer, state).inner == peak.init(longer)
    without_t = LimitedDeadline(UsefulWork())
    assert without_t.retime(longer, without_t.init(setup)).inner == UsefulWork().init(setup)
    assert FixedDeadline(2.0).retime(longer, FixedDeadline(2.0).init(setup)) == FixedDeadline(2.0).init(longer)
