"""Whatever a client replies, the server has a sound report or says what is wrong: no other error."""

from __future__ import annotations

import io
import math
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from builders import make_order
from flower.link import DIVIDER, LinkedWorld, Upload, replaced, uploaded, with_length
from flower.phones import Phone, weights_of
from flower.test_private import PRIVATE
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde_utils import metadata_from_proto
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbalancer import method
from fedbalancer.client.compress import NoCompression, Quantised
from fedbalancer.client.round import decode_summaries
from fedbalancer.client.summary import Histogram, LossStatistics
from fedbalancer.flower.messages import (
    ARRAYS,
    FEDBALANCER,
    MEASURED,
    METRICS,
    PAYLOAD,
    RELEASED,
    SUMMARY,
    VECTOR,
    VERSION,
    metric_key,
    pack_update,
)
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout
from fedbalancer.flower.reading import Expected, read_greeting, unpack
from fedbalancer.flower.wire import Refused, ReplyLimit, decode, list_objects

SIZE = 20
LAYOUT = ModelLayout.of(ArrayRecord({"w": Array(np.zeros((2, 3), dtype=np.float32))}))
WEIGHTS = np.zeros(6, dtype=np.float32)
NUMBERS = st.sampled_from([0, 1, 5, -1, 2**40, 0.5, 1e-9, 1e9, 1e300, float("inf"), float("nan")]) | st.floats()
SEVERAL = st.lists(NUMBERS, max_size=4)
NAMES = [*map(metric_key, (*SUMMARY, *MEASURED)), "num-examples", RELEASED]
SOUND = {
    "loss_low": 0.1, "loss_high": 2.0, "loss_sum": 10.0, "loss_count": 10.0, "over_count": 5.0, "over_sumsq": 5.0,
    "batch_s": 0.5, "num-examples": 10, "epochs": 2.0, "forward_s": 1.0, "train_s": 3.0, "busy_s": 5.0,
}  # fmt: skip
WITHHELD = dict.fromkeys([*SUMMARY, "num-examples"], 0) | {"batch_s": 0.5, "epochs": float(make_order().epochs)}
"""What a client says in place of these beside a private summary."""


class Reply:
    """As much of Flower's message as is read."""

    def __init__(self, content: RecordDict) -> None:
        self.content = content


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([*[usual] * 9, *others])


def array(draw: Any, length: int) -> Array:
    """An array of float32, or of `length` bytes, that may lie about its type, its shape and its bytes."""
    dtype = draw(mostly("uint8" if length else "float32", "float64", "complex64", "object", "<U3", "nonsense"))
    shape = draw(mostly((length or 6,), (2, 3), (), (-1,), (10**9, 10**9), (0,)))
    floats = st.lists(mostly(0.5, 0.0, 1e9, float("nan"), float("inf")) | st.floats(width=32), min_size=6, max_size=6)
    values = np.frombuffer(draw(st.binary(min_size=length, max_size=length)), np.uint8) if length else draw(floats)
    file = io.BytesIO()
    np.save(file, np.asarray(values, dtype=np.uint8 if length else np.float32))
    data = draw(mostly(file.getvalue(), file.getvalue()[:-3], b"") | st.binary())
    return Array(dtype, shape, draw(mostly("numpy.ndarray", "pickle")), data)


def sound_metrics(summary: Any) -> dict[str, Any]:
    sound = SOUND | (WITHHELD if summary.is_private else {})
    return {metric_key(name): value for name, value in sound.items()} | {RELEASED: [5.0, 5.0, 5.0, 5.0]}


def sound_reply(summary: Any, compress: Any) -> RecordDict:
    update = np.full(6, 0.5, dtype=np.float32)
    plain = isinstance(compress, NoCompression)
    arrays = pack_update(update if plain else compress.encode(update, LAYOUT.layout, 0, None)[0])
    ours = ConfigRecord({"client": "c0", "round": 1, "version": VERSION, "outcome": "trained", "phase": ""})
    return RecordDict({FEDBALANCER: ours, METRICS: MetricRecord(sound_metrics(summary)), ARRAYS: arrays})


@st.composite
def replies(draw: Any, summary: Any, compress: Any) -> RecordDict:
    length = 0 if isinstance(compress, NoCompression) else compress.encoded_bytes(LAYOUT.layout)
    metrics = sound_metrics(summary)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        metrics[name] = draw(NUMBERS | SEVERAL.map(lambda values: [float(value) for value in values]))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=1)) if draw(st.integers(0, 9)) == 0 else ():
        metrics.pop(name, None)
    told = {"client": draw(mostly("c0", "c1")), "round": draw(mostly(1, 2, "1")), "version": draw(mostly(VERSION, 0))}
    told |= {"outcome": draw(mostly("trained", "stopped", "x")), "phase": "train"}
    names = draw(mostly([PAYLOAD if length else VECTOR], ["w"], [PAYLOAD], [VECTOR], ["w", "x"], []))
    arrays = ArrayRecord({name: array(draw, length) for name in names})
    records = {FEDBALANCER: ConfigRecord(told), METRICS: MetricRecord(metrics), ARRAYS: arrays}
    return RecordDict({name: record for name, record in records.items() if draw(st.integers(0, 19))})


@pytest.mark.parametrize("examples", [150, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("compress", [NoCompression(), Quantised(8)])
@pytest.mark.parametrize("summary", [LossStatistics(), Histogram(bins=4)])
def test_the_decoder_of_replies(examples: int, compress: Any, summary: Any) -> None:
    expected = Expected("c0", SIZE, make_order(), WEIGHTS, LAYOUT, compress, summary)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(replies(summary, compress), st.floats(10, 1e6))
    def check(content: RecordDict, round_trip_s: float) -> None:
        with suppress(InvalidMessage):
            report, _ = unpack(Reply(content), expected, round_trip_s)  # type: ignore[arg-type]
            if report is not None:
                assert np.isfinite(report.update).all()
                assert 0 < report.weight <= SIZE

    check()


def mutated(rng: random.Random, body: bytes) -> bytes:
    """A body with some bytes changed, cut off or replaced."""
    how, place, some = rng.randrange(4), rng.randrange(len(body) + 1), rng.randbytes(rng.randrange(40))
    if how == 0 and place < len(body):
        return body[:place] + bytes([body[place] ^ rng.randrange(1, 256)]) + body[place + 1 :]
    return (body[:place], some, body[:place] + some + body[place:])[how % 3]


def tampered(rng: random.Random, upload: Upload) -> Upload:
    """An upload with other bodies of some objects. Heads, lengths and ids fit: the SuperLink checks those."""
    changes, names = {}, [node.object_id for node in iterate_object_tree(upload[1])]
    for name in rng.sample(names, rng.randrange(3)):
        head, _, body = upload[2][name].partition(DIVIDER)
        changes[name] = with_length(head, mutated(rng, body))
    return replaced(upload, changes)


@pytest.mark.parametrize("examples", [60, pytest.param(5_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("compress", [NoCompression(), Quantised(8)])
@pytest.mark.parametrize("summary", [LossStatistics(), Histogram(bins=4)])
def test_bytes_are_a_report_or_refused(examples: int, compress: Any, summary: Any) -> None:
    expected = Expected("c0", SIZE, make_order(), WEIGHTS, LAYOUT, compress, summary)
    limit, accepted = ReplyLimit.of(LAYOUT), []
    policies = method("fedbalancer", summary=summary, compress=compress).client

    few = examples < 1000  # the same ones every time: a few random ones may all be refused
    checks = list(HealthCheck)

    @settings(max_examples=examples, deadline=None, database=None, derandomize=few, suppress_health_check=checks)
    @given(replies(summary, compress), st.integers(0, 2**64))
    def check(content: RecordDict, seed: int) -> None:
        sent = sound_reply(summary, compress) if seed % 2 else content
        order = Message(RecordDict(), dst_node_id=2, message_type="train")
        order.metadata.__dict__["_message_id"] = "asked"
        proto, tree, contents = tampered(random.Random(seed), uploaded(Message(sent, reply_to=order)))
        with suppress(InvalidMessage, Refused):
            listed = list_objects(metadata_from_proto(proto.metadata), tree)
            limit.check(listed)
            message = decode(listed, contents, limit.bytes)
            if message.has_error():
                return
            with suppress(InvalidMessage):
                read_greeting(message, 5.0, 100)
            report, _ = unpack(message, expected, 100.0)
            if report is not None:
                (counted,) = decode_summaries([report], policies, expected.order, lambda client: SIZE)
                accepted.append(counted)
                assert np.isfinite(counted.update).all()
                assert math.isfinite(counted.summary.loss_sum)

    check()
    assert accepted, "nothing is sound: the rest of the way was not tried"


METHODS = ["fedbalancer", "fedbalancer+robust", "fedavg+1t+graddrop", PRIVATE, "fedbuff"]


@pytest.mark.parametrize("runs", [1, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", METHODS)
def test_the_run_continues_whatever_nodes_upload(runs: int, name: str) -> None:
    """Three of five nodes tamper with the bytes of their replies; the other two count in every round."""
    for seed in range(runs):
        rng = random.Random(seed)
        world = LinkedWorld(*map(Phone, range(5)), tampers=dict.fromkeys((1, 2, 3), lambda one: tampered(rng, one)))  # noqa: B023
        result = world.start(4, name)
        assert np.isfinite(weights_of(result)).all()
        missing = [event["missing"] for event in world.of("round closed")]
        assert len(missing) == 4
        faulty = {client for each in missing for client, why in each.items() if why in ("invalid", "error", "silent")}
        assert faulty <= {event["client"] for kind in ("invalid", "error") for event in world.of(kind)} - {"c0", "c4"}
