"""Replies as bytes: whatever a node uploads costs its own report and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.link import DIVIDER, Link, LinkedWorld, Tamper, Upload, replaced, uploaded, with_length
from flower.phones import Phone, World, weights_of
from flower.test_private import PRIVATE
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_type_from_object_content

from fedbalancer.client.summary import Histogram
from fedbalancer.core.errors import MissingData
from fedbalancer.flower.mailbox import LANES, ReplyPuller
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.flower.reading import unpack
from fedbalancer.flower.wire import ReplyLimit


def objects_of(upload: Upload, kind: str) -> list[str]:
    return [name for name, content in upload[2].items() if get_object_type_from_object_content(content) == kind]


def with_body(kind: str, body: Callable[[bytes], bytes]) -> Tamper:
    """A tamper that gives all objects of a kind another body, under a valid head."""

    def tamper(upload: Upload) -> Upload:
        changes = {}
        for name in objects_of(upload, kind):
            head, _, old = upload[2][name].partition(DIVIDER)
            changes[name] = with_length(head, body(old))
        return replaced(upload, changes)

    return tamper


def bomb(body: bytes) -> bytes:
    """An array whose one chunk is named a million times."""
    return json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 10**6}).encode()


def of_another(upload: Upload) -> Upload:
    """A message that says it answers another client's."""
    (name,) = objects_of(upload, "Message")
    answered = upload[0].metadata.reply_to_message_id.encode()
    changed = replaced(upload, {name: upload[2][name].replace(answered, b"0" * len(answered))})
    assert changed[1].object_id != upload[1].object_id
    return changed


def without_a_child(upload: Upload) -> Upload:
    """A tree that lacks an object which another one names."""
    proto, tree, contents = upload
    del tree.children[0].children[0]
    return proto, tree, contents


def no_message(upload: Upload) -> Upload:
    proto, tree, contents = upload
    proto.metadata.message_id = tree.children[0].object_id
    return proto, tree.children[0], contents


UNDECODABLE: dict[str, Tamper] = {
    "metrics that are no protobuf": with_body("MetricRecord", lambda body: b"\xff" * 40),
    "a configuration that is cut off": with_body("ConfigRecord", lambda body: body[:-3]),
    "records that are no JSON": with_body("RecordDict", lambda body: b"{"),
    "records nested too deep": with_body("RecordDict", lambda body: b"[" * 10**5),
    "an array without a shape": with_body("Array", lambda body: b"{}"),
    "an array of a million chunks": with_body("Array", bomb),
    "a message that is no protobuf": with_body("Message", lambda body: b"\xff" * 40),
    "a message of another": of_another,
    "no message": no_message,
    "an object that is not in the tree": without_a_child,
}


@pytest.mark.parametrize("name", UNDECODABLE)
def test_an_undecodable_reply_costs_its_sender_only(name: str) -> None:
    world = LinkedWorld(Phone(0), Phone(1), Phone(2), tampers={1: UNDECODABLE[name]})
    result = world.start(2, "fedavg+wfa")
    assert [(event["client"], event["round"]) for event in world.of("invalid")] == [("c1", 1)], world.events
    assert world.of("sits out")[0]["client"] == "c1"
    assert [event["completed"] for event in world.of("round closed")] == [2, 2]
    assert np.isfinite(weights_of(result)).all()


def test_a_summary_that_cannot_be_read_costs_its_sender_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such summary is known. If there is one, it must not end the run of all."""
    before = Histogram.read

    def read(self: Histogram, summaries: Any, order: Any) -> Any:
        if any(sum(each.released) == 40 for each in summaries):
            raise IndexError("index 64 is out of bounds")
        return before(self, summaries, order)

    monkeypatch.setattr(Histogram, "read", read)
    check_one_is_left_out(LinkedWorld(Phone(0), Phone(1), Phone(2)), PRIVATE)


def test_a_reply_that_cannot_be_read_costs_its_sender_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(message: Message, expected: Any, round_trip_s: float) -> Any:
        if expected.client == "c1":
            raise IndexError("index 64 is out of bounds")
        return unpack(message, expected, round_trip_s)

    monkeypatch.setattr("fedbalancer.flower.open_round.unpack", read)
    check_one_is_left_out(LinkedWorld(Phone(0), Phone(1), Phone(2)), "fedavg+wfa")


def check_one_is_left_out(world: LinkedWorld, method: str) -> None:
    world.start(2, method)
    assert [event["client"] for event in world.of("invalid")] == ["c1"]
    assert "IndexError" in world.of("invalid")[0]["why"]
    assert [event["completed"] for event in world.of("round closed")] == [2, 2]


@pytest.mark.parametrize("method", ["fedavg+wfa", "fedbalancer"])
def test_the_wire_changes_no_number(method: str) -> None:
    phones = lambda: (Phone(0), Phone(1), Phone(2))  # noqa: E731
    assert np.array_equal(
        weights_of(LinkedWorld(*phones()).start(3, method)), weights_of(World(*phones()).start(3, method))
    )


def with_arrays(arrays: dict[str, Array]) -> Callable[[Message], Message]:
    """A change of a reply: these arrays in place of its own."""
    return lambda reply: _changed(reply, RecordDict({**dict(reply.content), "arrays": ArrayRecord(arrays)}))


def _changed(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return reply


@pytest.mark.parametrize(
    ("arrays", "words", "most_bytes"),
    [
        (
            {f"a{n}": Array(np.full(1, n, dtype=np.float32)) for n in range(300)},
            "300 arrays, where the model has 1",
            10**6,
        ),
        ({"fedbalancer.vector": Array(np.ones(10**7, dtype=np.float32))}, "a reply of more than", 3 * 10**6),
    ],
)
def test_a_reply_that_is_too_large_is_not_downloaded(arrays: Any, words: str, most_bytes: int) -> None:
    world = LinkedWorld(Phone(0, change=with_arrays(arrays)))
    world.start(1, "fedavg+wfa")
    (event,) = world.of("invalid")
    assert event["client"] == "c0"
    assert words in event["why"]
    assert world.link.served_bytes < most_bytes
    assert world.link.asked.count("pull-object") < 20


def test_the_limit_grows_with_the_model() -> None:
    large = {"a": Array(np.zeros(10**6)), "b": Array(np.zeros(7, dtype=np.int64))}
    limit = ReplyLimit.of(ModelLayout.of(ArrayRecord(large)))
    assert limit.arrays == 2
    assert 16 * 10**6 < limit.bytes < 18 * 10**6


REQUESTS = ["get-nodes", "push-messages", "push-object", "pull-messages", "pull-object", "confirm-message-received"]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_superlink_that_fails_for_a_while_is_asked_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbalancer.flower.wire.WAITS_S", (0.01,))
    world = LinkedWorld(Phone(0), Phone(1))
    world.link.failures = {name: 3}
    world.start(2, "fedavg+wfa")
    assert [event["completed"] for event in world.of("round closed")] == [2, 2]


def test_an_object_that_the_superlink_did_not_store_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperLink whose database is locked answers 200, and says that it has stored nothing."""
    monkeypatch.setattr("fedbalancer.flower.wire.WAITS_S", (0.01,))
    world = LinkedWorld(Phone(0), Phone(1))
    world.link.unstored = 3
    world.start(2, "fedavg+wfa")
    assert [event["completed"] for event in world.of("round closed")] == [2, 2]


@pytest.mark.parametrize("name", ["get-nodes", "push-messages", "push-object", "pull-messages"])
def test_a_superlink_that_fails_for_good_is_an_error_with_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbalancer.flower.wire.WAITS_S", (0.01,))
    monkeypatch.setattr("fedbalancer.flower.wire.GIVE_UP_S", 0.1)
    world = LinkedWorld(Phone(0), Phone(1))
    world.link.failures = {name: 10**6}
    with pytest.raises(MissingData, match=r"has failed for 0\.1 s.*run_key"):
        world.start(2, "fedavg+wfa")
    assert 2 < world.link.asked.count(name) < 50


def test_a_reply_that_the_superlink_cannot_hand_out_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbalancer.flower.wire.GIVE_UP_S", 0.0)

    def vanished(upload: Upload) -> Upload:
        return upload[0], upload[1], {}

    world = LinkedWorld(Phone(0), Phone(1), Phone(2), tampers={1: vanished})
    world.start(1, "fedavg+wfa")
    (event,) = world.of("error")
    assert (event["client"], "lost" in event["why"]) == ("c1", True)
    assert world.of("round closed")[0]["completed"] == 2
    assert not world.of("sits out")


@pytest.mark.parametrize(("hanging", "honest"), [(1, 9), (4, 46), (40, 10), (LANES + 10, 5)])
def test_uploads_that_hang_withhold_no_honest_reply_and_no_send(hanging: int, honest: int) -> None:
    """Before: 1 of 10 withheld 2 honest replies, 4 of 50 all 46, and 40 stopped all sends."""
    world = LinkedWorld()
    link = world.link
    ids = [f"m{number}" for number in range(hanging + honest)]
    for number, identity in enumerate(ids):
        upload = _reply(identity, number)
        link.replies.append((0.0, identity, upload))
        if number >= hanging:
            link.objects |= upload[2]
        else:
            link.objects |= dict.fromkeys(upload[2], b"")
    puller = ReplyPuller(link.grid, ReplyLimit(1, 10**6))
    got = pulled(puller, ids, honest)
    assert sorted(got) == sorted(ids[hanging:])
    assert puller.call_in_background(sorted, [2, 1]) == [1, 2]
    link.objects |= _reply(ids[0], 0)[2]
    assert pulled(puller, ids[:hanging], 1) == [ids[0]], "an upload that is completed later counts"


def pulled(puller: ReplyPuller, ids: list[str], count: int) -> list[str]:
    """Pull until `count` replies have come, or for ten seconds."""
    got: list[str] = []
    for _ in range(100):
        got += [reply.answers for reply in puller.pull([one for one in ids if one not in got], 0.2)]
        if len(got) >= count:
            break
        time.sleep(0.1)
    return got


def _reply(identity: str, number: int) -> Upload:
    order = Message(RecordDict(), dst_node_id=number + 2, message_type="train")
    order.metadata.__dict__["_message_id"] = identity
    reply = Message(RecordDict({"c": ConfigRecord({"number": number})}), reply_to=order)
    reply.metadata.created_at = order.metadata.created_at = 1.0
    reply.metadata.ttl = 60.0
    return uploaded(reply)


def test_what_is_given_up_is_not_kept() -> None:
    world = LinkedWorld()
    link: Link = world.link
    upload = _reply("m", 0)
    link.replies.append((0.0, "m", upload))
    link.objects |= dict.fromkeys(upload[2], b"")
    puller = ReplyPuller(link.grid, ReplyLimit(1, 10**6), background=False)
    assert puller.pull(["m"], 0.0) == []
    puller.forget("m")
    link.objects |= upload[2]
    assert puller.pull([], 0.0) == []
    assert not puller._incoming
