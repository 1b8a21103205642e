"""Whatever a client replies, the server has a sound report or says what is wrong: no other error."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from builders import make_order
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbalancer.client.compress import NoCompression, Quantised
from fedbalancer.client.summary import Histogram, LossStatistics
from fedbalancer.flower.layout import Faulty, ModelLayout
from fedbalancer.flower.orders import ARRAYS, METRICS, OURS, VERSION
from fedbalancer.flower.reading import Expected, unpack
from fedbalancer.flower.replies import MEASURED, PAYLOAD, RELEASED, SUMMARY, VECTOR, dashed

SIZE = 20
LAYOUT = ModelLayout.of(ArrayRecord({"w": Array(np.zeros((2, 3), dtype=np.float32))}))
WEIGHTS = np.zeros(6, dtype=np.float32)
NUMBERS = st.sampled_from([0, 1, 5, -1, 2**40, 0.5, 1e-9, 1e9, 1e300, float("inf"), float("nan")]) | st.floats()
SEVERAL = st.lists(NUMBERS, max_size=4)
NAMES = [*map(dashed, (*SUMMARY, *MEASURED)), "num-examples", RELEASED]
SOUND = {
    "loss_low": 0.1, "loss_high": 2.0, "loss_sum": 10.0, "loss_count": 10.0, "over_count": 5.0, "over_sumsq": 5.0,
    "batch_s": 0.5, "num-examples": 10, "epochs": 2.0, "forward_s": 1.0, "train_s": 3.0, "busy_s": 5.0,
}  # fmt: skip


class Reply:
    """As much of Flower's message as is read."""

    def __init__(self, content: RecordDict) -> None:
        self.content = content


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([*[usual] * 9, *others])


def array(draw: Any) -> Array:
    """An array that may lie about its type, its shape and its bytes."""
    dtype = draw(mostly("float32", "float64", "uint8", "complex64", "object", "<U3", "nonsense"))
    shape = draw(mostly((6,), (2, 3), (), (-1,), (10**9, 10**9), (0,)))
    file = io.BytesIO()
    np.save(file, np.array(draw(st.lists(st.floats(width=32), min_size=6, max_size=6)), dtype=np.float32))
    data = draw(mostly(file.getvalue(), file.getvalue()[:-3], b"") | st.binary())
    return Array(dtype, shape, draw(mostly("numpy.ndarray", "pickle")), data)


@st.composite
def replies(draw: Any) -> RecordDict:
    metrics: dict[str, Any] = {dashed(name): value for name, value in SOUND.items()} | {RELEASED: [5.0, 5.0, 5.0, 5.0]}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        metrics[name] = draw(NUMBERS | SEVERAL.map(lambda values: [float(value) for value in values]))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=1)) if draw(st.integers(0, 9)) == 0 else ():
        metrics.pop(name, None)
    told = {"client": draw(mostly("c0", "c1")), "round": draw(mostly(1, 2, "1")), "version": draw(mostly(VERSION, 0))}
    told |= {"outcome": draw(mostly("trained", "stopped", "x")), "phase": "train"}
    names = draw(mostly([VECTOR], ["w"], [PAYLOAD], ["w", "x"], []))
    arrays = ArrayRecord({name: array(draw) for name in names})
    records = {OURS: ConfigRecord(told), METRICS: MetricRecord(metrics), ARRAYS: arrays}
    return RecordDict({name: record for name, record in records.items() if draw(st.integers(0, 19))})


@pytest.mark.parametrize("examples", [150, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("compress", [NoCompression(), Quantised(8)])
@pytest.mark.parametrize("summary", [LossStatistics(), Histogram(bins=4)])
def test_the_decoder_of_replies(examples: int, compress: Any, summary: Any) -> None:
    expected = Expected("c0", SIZE, make_order(), WEIGHTS, LAYOUT, compress, summary)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(replies(), st.floats(10, 1e6))
    def check(content: RecordDict, round_trip_s: float) -> None:
        with suppress(Faulty):
            report, _ = unpack(Reply(content), expected, round_trip_s)  # type: ignore[arg-type]
            if report is not None:
                assert np.isfinite(report.update).all()
                assert 0 < report.weight <= SIZE

    check()
