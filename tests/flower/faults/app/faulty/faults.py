"""Every way in which a client of the tests goes wrong, by the moment at which it does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
from flwr.supernode.runtime import run_clientapp

from faulty.model import FEATURES
from fedbalancer.flower import LocalRound
from fedbalancer.flower.compat import reply_to
from fedbalancer.flower.messages import ARRAYS, FEDBALANCER, METRICS, VECTOR

MANY, HUGE = 300, 50_000_000
"""Arrays of the reply with too many of them, and numbers of the reply that is too large: 200 MB."""
SLOW_S = 3.0
"""How long a slow client takes in mid-training: time enough to kill its node."""


def die(work: LocalRound) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(work: LocalRound) -> None:
    raise RuntimeError("on purpose")


def leave(work: LocalRound) -> None:
    sys.exit(3)


def past_deadline(seconds: float) -> Callable[[LocalRound], None]:
    """Wait until this many seconds after the deadline, which starts when the order is made."""

    def wait(work: LocalRound) -> None:
        until = work.message.metadata.created_at + work.order.deadline_s + seconds
        time.sleep(max(until - time.time(), 0.0))

    return wait


def changed(work: LocalRound, reply: Message, **records: Any) -> Message:
    """The reply with other records in place of its own."""
    return reply_to(work.message, RecordDict({**dict(reply.content), **records}), work.elapsed_s())


def with_model(values: Any, name: str = VECTOR) -> Callable[[LocalRound, Message], Message]:
    record = ArrayRecord({name: Array(np.asarray(values, dtype=np.float32))})
    return lambda work, reply: changed(work, reply, **{ARRAYS: record})


def with_weight(weight: int) -> Callable[[LocalRound, Message], Message]:
    def change(work: LocalRound, reply: Message) -> Message:
        metrics = MetricRecord({**dict(reply.content.metric_records[METRICS]), "num-examples": weight})
        return changed(work, reply, **{METRICS: metrics})

    return change


def empty(work: LocalRound, reply: Message) -> Message:
    return reply_to(work.message, RecordDict(), work.elapsed_s())


def old_round(work: LocalRound, reply: Message) -> Message:
    ours = ConfigRecord({**dict(reply.content.config_records[FEDBALANCER]), "round": work.order.round - 1})
    return changed(work, reply, **{FEDBALANCER: ours})


def twice(work: LocalRound, reply: Message) -> Message:
    """A second answer to the same order comes with the first; its model is another one, so that it cannot hide."""
    again = with_model(np.full(work.weights().shape, 7.0))(work, reply)

    def both(client: Any, message: Message, context: Any) -> None:
        # First both messages, then what is in them: the SuperNode sends what it finds when the first one is there.
        stored = [_stored(client, one) for one in (message, again)]
        for one, answer in zip((message, again), stored, strict=True):
            push = run_clientapp.make_push_object_fn_protobuf(
                client.PushObject, run_clientapp.Node(node_id=context.node_id), run_id=context.run_id,
                session_id=answer.session_id,
            )  # fmt: skip
            wanted = set(answer.objects_to_push)
            run_clientapp.push_objects(run_clientapp.get_all_nested_objects(one), push, object_ids_to_push=wanted)

    run_clientapp.push_message = both
    return reply


def garbage(work: LocalRound, reply: Message) -> Message:
    """Metrics with a valid head, which is all that the SuperLink checks, and a body that is no protobuf message."""
    metrics = MetricRecord({"x": 1})
    content = add_header_to_object_body(b"\xff" * 40, metrics)
    metrics.__dict__["deflate"] = lambda: content
    return changed(work, reply, **{METRICS: metrics})


def many_arrays(work: LocalRound, reply: Message) -> Message:
    """One number in 300 shapes: 300 objects that the SuperLink has to store, list and delete."""
    data = Array(np.zeros(1, dtype=np.float32)).data
    arrays = {f"a{number}": Array("float32", (number,), "numpy.ndarray", data) for number in range(MANY)}
    return changed(work, reply, **{ARRAYS: ArrayRecord(arrays)})


def huge(work: LocalRound, reply: Message) -> Message:
    return with_model(np.ones(HUGE))(work, reply)


def hang(work: LocalRound, reply: Message) -> Message:
    """An upload that is announced and never comes."""

    def announce(client: Any, message: Message, context: Any) -> None:
        _stored(client, message)
        time.sleep(3600.0)

    run_clientapp.push_message = announce
    return reply


def _stored(client: Any, message: Message) -> Any:
    """Return the SuperNode's reply to a message without content."""
    message.metadata.__dict__["_message_id"] = message.object_id
    bare = run_clientapp.message_to_proto(run_clientapp.remove_content_from_message(message))
    tree = run_clientapp.get_object_tree(message)
    return client.PushMessages(run_clientapp.PushAppMessagesRequest(messages_list=[bare], message_object_trees=[tree]))


BEFORE = {"kill-before": die, "raise": fail, "exit": leave}
DURING = {"kill-during": die, "sleep": past_deadline(8.0), "slow": lambda work: time.sleep(SLOW_S)}
REPLIES = {
    "nan": with_model([np.nan] * FEATURES),
    "shape": with_model([1.0]),
    "key": with_model(np.ones(FEATURES), "somebody.else"),
    "ten-times": with_model(np.ones(10 * FEATURES)),
    "weight-1e12": with_weight(10**12),
    "weight-85": with_weight(-85),
    "empty": empty,
    "old-round": old_round,
    "twice": twice,
    "garbage": garbage,
    "many-arrays": many_arrays,
    "huge": huge,
    "hang": hang,
}
AFTER = {"kill-after": die, "late": past_deadline(1.0)}
