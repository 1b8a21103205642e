"""Rounds on Flower, with every kind of bad client: the round ends, good work counts once, the offender is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import make_context
from flower.phones import FEATURES, Phone, World, weights_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedbalancer.core.errors import MissingData
from fedbalancer.flower.messages import VECTOR

TRUTH = np.arange(1, FEATURES + 1)


def altered(reply: Message, **changes: Any) -> Message:
    """The reply with another record or with other values in one."""
    records = {name: reply.content[name] for name in reply.content}
    for name, change in changes.items():
        records[name] = change(records[name]) if callable(change) else change
    other = Message(RecordDict(records), reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other


def metrics(**values: Any) -> Any:
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return lambda record: MetricRecord({**dict(record), **named})


def arrays(**values: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, dtype=np.float32)) for name, value in values.items()})


def raised(reply: Message) -> Message:
    other = Message(Error(2, "it raised"), reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    other.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own
    return other


def lying_array(reply: Message) -> Message:
    """A record that says (4,) outside and a shape of a terabyte inside."""
    honest = Array(np.zeros(FEATURES, dtype=np.float32))
    data = honest.data.replace(b"(4,), }         ", b"(400000000000,)}")
    assert data != honest.data
    return altered(reply, arrays=ArrayRecord({"w": Array("float32", (FEATURES,), "numpy.ndarray", data)}))


def headed(header: bytes) -> Any:
    """An array whose header is another text of the same length."""
    honest = Array(np.zeros(FEATURES, dtype=np.float32))
    data = honest.data[:10] + header.ljust(118)[:117] + b"\n" + honest.data[128:]
    record = ArrayRecord({"w": Array("float32", (FEATURES,), "numpy.ndarray", data)})
    return lambda reply: altered(reply, arrays=record)


def emptied(reply: Message) -> Message:
    other = Message(RecordDict(), reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other


FAULTS = {
    "NaN": lambda r: altered(r, arrays=arrays(w=[np.nan] * FEATURES)),
    "huge": lambda r: altered(r, arrays=arrays(w=[1e30] * FEATURES)),
    "wrong shape": lambda r: altered(r, arrays=arrays(w=[1.0])),
    "ten times the size": lambda r: altered(r, arrays=arrays(w=np.ones(10 * FEATURES))),
    "wrong key": lambda r: altered(r, arrays=arrays(v=np.ones(FEATURES))),
    "a long vector": lambda r: altered(r, arrays=arrays(**{VECTOR: np.ones(10 * FEATURES)})),
    "a header that lies": lying_array,
    "a header that is no text of Python": headed(b"{'descr': ("),
    "a header that cannot be made": headed(b"{[]: 1}"),
    "a loss near the end of numbers": lambda r: altered(r, metrics=metrics(loss_high=1.7e308)),
    "a batch of years": lambda r: altered(r, metrics=metrics(batch_s=1e9)),
    "weight 1e12": lambda r: altered(r, metrics=metrics(num_examples=10**12)),
    "weight -85": lambda r: altered(r, metrics=metrics(num_examples=-85)),
    "a loss that is no number": lambda r: altered(r, metrics=metrics(loss_sum=float("nan"))),
    "negative seconds": lambda r: altered(r, metrics=metrics(train_s=-1.0)),
    "too many epochs": lambda r: altered(r, metrics=metrics(epochs=99.0)),
    "metrics without numbers": lambda r: altered(r, metrics=MetricRecord({})),
    "another version": lambda r: altered(r, fedbalancer=lambda c: ConfigRecord({**dict(c), "version": 99})),
    "another's name": lambda r: altered(r, fedbalancer=lambda c: ConfigRecord({**dict(c), "client": "c0"})),
    "another round": lambda r: altered(r, fedbalancer=lambda c: ConfigRecord({**dict(c), "round": 77})),
    "empty": emptied,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_named_and_left_out(fault: str) -> None:
    world = World(Phone(0), Phone(1), Phone(2, change=FAULTS[fault]))
    result = world.start(3, "fedavg+2t")
    assert {fields["client"] for fields in world.of("invalid")} == {"c2"}
    assert [result.train_metrics_clientapp[n]["completed"] for n in (1, 2, 3)] == [2, 2, 2]
    alone = World(Phone(0), Phone(1)).start(3, "fedavg+2t")
    assert weights_of(result) == pytest.approx(weights_of(alone), abs=1e-6)


def test_good_clients_learn() -> None:
    result = World(Phone(0), Phone(1), Phone(2)).start(8)
    assert weights_of(result) == pytest.approx(TRUTH, abs=0.2)


def test_an_error_is_attributed_by_the_message_it_answers() -> None:
    world = World(Phone(0), Phone(1, change=raised))
    world.start(2)
    assert [fields["client"] for fields in world.of("error")] == ["c1", "c1"]
    assert world.of("error")[0]["why"] == "error 2: it raised"


def test_a_client_cannot_fill_or_forge_the_log() -> None:
    def book(reply: Message) -> Message:
        other = Message(Error(2, "no\nround closed: all is well " + "x" * 10**6), reply_to=reply)
        other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return other

    world = World(Phone(0), Phone(1, change=book))
    world.start(1)
    (told,) = world.of("error")
    assert told["client"] == "c1"
    assert "\n" not in told["why"]
    assert len(told["why"]) <= 300


def test_a_silent_client_costs_an_evaluation_no_more_than_the_others_took_twice() -> None:
    world = World(Phone(0), Phone(1), Phone(2), Phone(3, evaluates=False))
    world.start(2, "fedavg+wfa", federated_evaluate=True, clients_per_round=3)
    evaluated = world.of("evaluated")
    assert len(evaluated) == 3
    assert all(np.isfinite(fields["loss"]) for fields in evaluated)
    assert world.clock() < 120.0


def test_a_silent_client_costs_a_round_its_deadline_and_no_more() -> None:
    world = World(Phone(0), Phone(1), Phone(2, change=lambda reply: None))
    result = world.start(4, "fedavg+1t")
    for number in range(1, 5):
        told = result.train_metrics_clientapp[number]
        assert told["seconds"] <= told["deadline_s"] + 0.001
        assert told["completed"] <= 2
    assert {fields["client"] for fields in world.of("no reply")} == {"c2"}
    assert "silent" in {fields["missing"].get("c2") for fields in world.of("round closed")}


def test_a_client_with_work_left_is_not_asked_again() -> None:
    hour_s = 3600.0
    late = Phone(2, change=lambda reply: [(hour_s, reply)])
    world = World(Phone(0), Phone(1), late)
    world.start(4, "fedavg+spc", settings={"deadline.share": 0.67})
    assert len(late.orders) == 1


def test_a_second_reply_counts_once_and_a_late_one_not_at_all() -> None:
    twice = Phone(1, change=lambda reply: [(0.0, reply), (0.0, altered(reply))])
    world = World(Phone(0), twice)
    result = world.start(3, "fedavg+wfa")
    once = World(Phone(0), Phone(1)).start(3, "fedavg+wfa")
    assert weights_of(result) == pytest.approx(weights_of(once), abs=0)
    late = Phone(2, change=lambda reply: [(5.0, reply)])
    world = World(Phone(0), Phone(1), late)
    world.start(3, "fedavg+1t")
    assert {fields["client"] for fields in world.of("late reply")} == {"c2"}


def test_what_a_client_learnt_counts_for_it_only_once_the_server_took_it() -> None:
    late = Phone(1, change=lambda reply: [(14.0 if len(late.orders) == 2 else 0.0, reply)])
    world = World(Phone(0), late)
    world.start(5, "prox+2t")
    assert {fields["round"] for fields in world.of("late reply")} == {2}
    assert [order.accepted_round for order in late.orders][:4] == [0, 1, 1, 3]


def test_the_transport_is_taken_off_the_budget() -> None:
    slow, near = Phone(0, way_s=6.0), Phone(1, way_s=0.5)
    World(slow, near).start(4, "fedavg+2t")
    for phone in (slow, near):
        told = phone.orders[-1]
        assert told.budget_s == pytest.approx(told.order.deadline_s - phone.way_s - 3.0, abs=0.33)


def test_a_client_that_joins_later_takes_part() -> None:
    world = World(Phone(0), Phone(1))
    joining = Phone(2)

    def evaluate(round: int, record: ArrayRecord) -> MetricRecord:
        if round == 2:
            world.grid.nodes[9] = joining
        return MetricRecord({"loss": 1.0})

    world.start(8, "fedavg+wfa", evaluate_fn=evaluate, clients_per_round=3)
    assert joining.orders
    assert {fields["client"] for fields in world.of("client joined")} == {"c2"}


def test_a_client_that_restarts_on_another_node_is_the_same_client() -> None:
    world = World(Phone(0), Phone(1))

    def evaluate(round: int, record: ArrayRecord) -> MetricRecord:
        if round == 2:
            world.grid.nodes[50] = world.grid.nodes.pop(3)
        return MetricRecord({"loss": 1.0})

    world.start(8, "fedavg+wfa", evaluate_fn=evaluate)
    assert len(world.phones[1].orders) > 4
    assert not world.of("client joined")


def test_of_two_that_claim_one_id_the_first_keeps_it() -> None:
    thief = Phone(5)
    thief.context = make_context(60, **{"client-id": "c1"})
    world = World(Phone(0), Phone(1))

    def evaluate(round: int, record: ArrayRecord) -> MetricRecord:
        if round == 2:
            world.grid.nodes[60] = thief
        return MetricRecord({"loss": 1.0})

    world.start(8, "fedavg+wfa", evaluate_fn=evaluate)
    assert thief.orders == []
    assert len(world.phones[1].orders) == 8
    assert world.of("id claimed twice")[0] == {"client": "c1", "node": 60, "before": 3}


def test_a_client_that_sends_invalid_reports_is_suspended_longer_every_time() -> None:
    bad = Phone(1, change=lambda reply: altered(reply, metrics=metrics(num_examples=-1)))
    world = World(Phone(0), bad, Phone(2))
    world.start(20, "fedavg+wfa")
    assert [event["round"] for event in world.of("invalid")] == [1, 3, 6, 11, 20]
    assert [event["until"] for event in world.of("sits out")][:4] == [2, 5, 10, 19]
    assert len(world.phones[0].orders) == 20


def test_nobody_else_there_everybody_takes_part() -> None:
    world = World(Phone(0, change=lambda reply: altered(reply, metrics=metrics(num_examples=-1))))
    world.start(5, "fedavg+wfa", max_failed_rounds=None)
    assert len(world.of("invalid")) == 5


def test_the_claims_of_a_client_postpone_no_deadline() -> None:
    """As many samples as are allowed, of an hour a batch (1e6 of them once made deadlines of 12,600,016 s)."""
    honest = [Phone(number) for number in range(4)]
    liar = Phone(9, batch_s=3600.0)
    liar.y = np.zeros(10**5)
    liar.x = np.zeros((10**5, FEATURES))
    deadlines = []
    for phones in (honest, [*honest, liar]):
        world = World(*phones)
        world.start(1, "fedbalancer", evaluate_fn=lambda round, record: MetricRecord({"loss": 1.0}))
        deadlines.append(world.of("round")[0]["deadline_s"])
    assert deadlines[1] < 30 * deadlines[0] < 10**4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"over_count": 1e4}, "over_count 10000, which must be at most"),
        ({"over_sumsq": 1e40}, "over_sumsq 1e+40"),
        ({"loss_high": 1e40}, "loss_high 1e+40"),
    ],
)
def test_a_statistic_that_cannot_be_is_named(values: dict[str, float], words: str) -> None:
    world = World(Phone(0), Phone(1, change=lambda reply: altered(reply, metrics=metrics(**values))))
    world.start(1, "fedavg+wfa")
    (event,) = world.of("invalid")
    assert (event["client"], words in event["why"]) == ("c1", True)


def test_nobody_there_is_told_and_ends() -> None:
    world = World()
    with pytest.raises(MissingData, match="SuperNodes"):
        world.start(1, min_clients=1, clients_per_round=1)


@pytest.mark.parametrize("name", ["fedbalancer", "fedbalancer+structured", "fedavg+1t+graddrop", "oortbalancer"])
def test_methods_run_by_name(name: str, tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1), Phone(2))
    world.start(4, name, checkpoint_dir=tmp_path, run_key="here")
    rows = pl.read_parquet(tmp_path / "here" / "rounds.parquet")
    assert rows["round"].to_list() == [1, 2, 3, 4]
    assert rows["completed"].sum() >= 6
    assert json.loads((tmp_path / "here" / "manifest.json").read_text())["status"] == "done"
