"""Between Flower's named arrays and our flat vector of weights. Nothing is unpickled, and nothing is allocated before
its size is known to be right."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import Layout, Order, Summary, Weights
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

STYPE = "numpy.ndarray"
HEADER_BYTES = 4096
"""More than the header of an .npy file of any array with few dimensions takes."""


class InvalidMessage(Exception):
    """What is wrong with something that was sent."""


def read_array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of an array that must have this shape and type; anything else is `InvalidMessage`, at no cost."""
    if tuple(array.shape) != shape or str(array.dtype) != str(dtype):
        raise InvalidMessage(f"array {name!r} is {array.dtype} {tuple(array.shape)} in place of {dtype} {shape}")
    if array.stype != STYPE:
        raise InvalidMessage(f"array {name!r} is packed as {array.stype!r} in place of {STYPE!r}")
    count = math.prod(shape)
    if not 0 <= len(array.data) - count * dtype.itemsize <= HEADER_BYTES:
        raise InvalidMessage(f"array {name!r} has {len(array.data)} bytes for {count} numbers of {dtype}")
    stream = io.BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        found, fortran, kind = read(stream)
    except Exception as error:  # NumPy lets through what Python's own parser raises on text that is no header
        raise InvalidMessage(f"array {name!r} has no header that can be read") from error
    # What the header says must be what the record says: a reader that believed the header would allocate by it.
    if found != shape or kind != dtype or len(array.data) - stream.tell() != count * dtype.itemsize:
        raise InvalidMessage(f"array {name!r} says {dtype} {shape} outside and {kind} {found} inside")
    values = np.frombuffer(array.data, dtype, count, offset=stream.tell())
    return values.reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of the arrays of a model. The floating ones are trained, in one vector of float32; the
    `others` (such as the counters of a batch norm) travel as they were at the start."""

    layout: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    others: Mapping[str, Array]

    @classmethod
    def of(cls, record: ArrayRecord) -> ModelLayout:
        """The layout of a model's arrays."""
        floating = {name: array for name, array in record.items() if np.dtype(array.dtype).kind == "f"}
        if not floating:
            raise BadData("the model's arrays hold no floating-point numbers, so there is nothing to train")
        layout = Layout((name, tuple(array.shape)) for name, array in floating.items())
        dtypes = {name: np.dtype(array.dtype) for name, array in floating.items()}
        return cls(layout, dtypes, {name: array for name, array in record.items() if name not in floating})

    def flat(self, record: ArrayRecord) -> Weights:
        """The vector of a record; one that does not fit the layout is `InvalidMessage`."""
        if strange := sorted(set(record) ^ {*self.dtypes, *self.others}):
            raise InvalidMessage(f"the arrays' names differ in {', '.join(map(repr, strange[:3]))}")
        return self.layout.join(
            {name: read_array(name, record[name], shape, self.dtypes[name]) for name, shape in self.layout}
        )

    def record(self, weights: Weights) -> ArrayRecord:
        """The named arrays of a vector."""
        tensors = self.layout.split(weights)
        floating = {name: Array(tensor.astype(self.dtypes[name])) for name, tensor in tensors.items()}
        return ArrayRecord({**self.others, **floating})


def reorder(vector: Weights, order: Layout, wanted: Layout) -> Weights:
    """A vector of the tensors of one layout in the order of another, which need not be the same: a module lists its
    parameters before its buffers, its state_dict as they come."""
    if order == wanted:
        return vector
    if dict(order) != dict(wanted):
        strange = sorted({str(item) for item in set(order) ^ set(wanted)})
        raise BadData(f"the server's model differs from this client's in {', '.join(strange[:3])}")
    return wanted.join(order.split(vector))


VERSION = 2
"""Of the wire format; a client and a server of different versions refuse each other by name."""

FEDBALANCER, ARRAYS, CONFIG, METRICS = "fedbalancer", "arrays", "config", "metrics"
"""The records of a message. All but the first are where a Flower app looks for them anyway."""

HELLO = "query.fedbalancer"
TRAIN, EVALUATE = "train", "evaluate"

POLICIES_CHARACTERS = 20_000
MOST_LATENCIES = 1000
"""Batches that a client times for its greeting."""
_NONE = -1


@dataclass(frozen=True)
class Instruction:
    """An order and what a client needs to carry it out. `budget_s` is the deadline less the transport, counted from the
    moment at which the client starts; `accepted_round` the last round in which the server took its report; `batch_s`
    what the server knows of its speed, for a client that has forgotten; `policies` what the client runs of the method
    (`ClientPolicies.to_json`), nothing where the server has policies of its own. If `late_counts`, a report counts
    that comes after the deadline, too."""

    client: str
    order: Order
    budget_s: float
    accepted_round: int
    batch_s: float
    run_key: str
    method: str
    policies: str
    late_counts: bool = False

    def record(self) -> ConfigRecord:
        order = self.order
        return ConfigRecord({
            "version": VERSION, "client": self.client, "round": order.round, "loss-threshold": order.loss_threshold,
            "deadline-s": float(order.deadline_s), "epochs": order.epochs, "batch-size": order.batch_size,
            "seed": order.seed, "sample-cap": _NONE if order.sample_cap is None else order.sample_cap,
            "epoch-batches": _NONE if order.epoch_batches is None else order.epoch_batches,
            "budget-s": float(self.budget_s), "learning-rate": order.learning_rate,
            "clip-norm": float(_NONE) if order.clip_norm is None else order.clip_norm,
            "accepted-round": self.accepted_round, "batch-s": self.batch_s, "run-key": self.run_key,
            "method": self.method, "policies": self.policies, "late-counts": self.late_counts,
        })  # fmt: skip

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Instruction:
        """The instruction of a record; a `BadSetting` that says what is wrong with it."""
        check_version(record)
        cap, cut, clip = (_number(record, name) for name in ("sample-cap", "epoch-batches", "clip-norm"))
        order = Order(
            round=_whole(record, "round", 1),
            loss_threshold=_number(record, "loss-threshold"),
            deadline_s=_number(record, "deadline-s", endless=True),
            epochs=_whole(record, "epochs", 1),
            batch_size=_whole(record, "batch-size", 1),
            seed=_whole(record, "seed", 0),
            sample_cap=None if cap < 0 else int(cap),
            epoch_batches=None if cut < 0 else int(cut),
            learning_rate=_number(record, "learning-rate"),
            clip_norm=None if clip < 0 else clip,
        )
        return cls(
            client=text(record, "client"),
            order=order,
            budget_s=_number(record, "budget-s", endless=True),
            accepted_round=_whole(record, "accepted-round", 0),
            batch_s=_number(record, "batch-s"),
            run_key=text(record, "run-key"),
            method=text(record, "method"),
            policies=text(record, "policies", POLICIES_CHARACTERS),
            late_counts=record.get("late-counts", False) is True,  # not known to servers of version 0.1
        )

    @property
    def learning_rate(self) -> float:
        """Where it was in an earlier version."""
        warnings.warn("take order.learning_rate in place of instruction.learning_rate", FutureWarning, stacklevel=2)
        return self.order.learning_rate

    def client_policies(self) -> ClientPolicies:
        """What the client runs of the server's method."""
        if not self.policies:
            raise BadSetting(
                f"method {self.method!r} has policies of the server's own; give the client the same method: method=..."
            )
        return ClientPolicies.from_json(self.policies)


def round_of(message: Message) -> int:
    """The round of a train message."""
    return int(str(message.content.config_records[FEDBALANCER]["round"]))


def check_version(record: Mapping[str, Any]) -> None:
    """Refuse a record of another version."""
    if record.get("version") != VERSION:
        raise BadSetting(f"version {record.get('version')!r} of the wire format; this is version {VERSION}")


def text(record: Mapping[str, Any], name: str, most: int = 200) -> str:
    value = record.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise BadSetting(f"{name} must be a text of at most {most} characters")
    return value


def _number(record: Mapping[str, Any], name: str, endless: bool = False) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise BadSetting(f"{name} = {value!r} must be a number")
    if math.isinf(value) and not (endless and value > 0):
        raise BadSetting(f"{name} = {value} must be finite")
    return float(value)


def _whole(record: Mapping[str, Any], name: str, least: int) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadSetting(f"{name} = {value!r} must be a whole number, at least {least}")
    return value


TRAINED, STOPPED = "trained", "stopped"
PAYLOAD, VECTOR = "fedbalancer.payload", "fedbalancer.vector"
"""The one array of an update, compressed or not: Flower fetches every array by a request of its own."""

SUMMARY = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s")
BATCH_S, WEIGHT, SIZE = "batch-s", "num-examples", "size"
MOST_METRICS, LONGEST_NAME = 100, 100
RELEASED = "released"
MEASURED = ("epochs", "busy_s", "forward_s", "train_s")


@dataclass(frozen=True)
class ClientMeasurements:
    """What a client measured on its own clock; `phase` is where it stood when it stopped itself."""

    epochs: float
    busy_s: float
    forward_s: float
    train_s: float
    phase: str = ""


def pack_report(
    client: str, order: Order, arrays: ArrayRecord, summary: Summary, measured: ClientMeasurements,
    more: Mapping[str, float] | None = None, size: int | None = None,
) -> RecordDict:  # fmt: skip
    """A report as Flower's records, with `more` metrics of the user's. `size` is the client's current number of
    samples, None if it is withheld."""
    metrics: dict[str, Any] = {WEIGHT: summary.trained} | ({} if size is None else {SIZE: size})
    metrics |= {metric_key(name): float(getattr(summary, name)) for name in SUMMARY}
    metrics |= {metric_key(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= more or {}
    if summary.released:
        metrics[RELEASED] = list(summary.released)
    return RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics), FEDBALANCER: _ours(client, order, TRAINED, "")})


def check_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Metrics of the user's own, if they can be sent: their names must not be ours."""
    found = dict(metrics or {})
    for name, value in found.items():
        if name in OUR_METRICS:
            raise BadSetting(f"metrics: {name!r} is a name of fedbalancer's own; choose another")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadData(f"metrics: {name} = {value!r} must be a finite number")
    return found


def custom_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a reply has beside our metrics: finite numbers under names of a sensible length, and not too many."""
    found = {name: value for name, value in metrics.items() if name not in OUR_METRICS and len(name) <= LONGEST_NAME}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)}
    return dict(list(numbers.items())[:MOST_METRICS])


def pack_stopped(client: str, order: Order, measured: ClientMeasurements, batch_s: float | None = None) -> RecordDict:
    """The word of a client that has nothing to report but, if it trained at all, how long its batches took."""
    metrics: dict[str, Any] = {metric_key(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= {} if batch_s is None else {BATCH_S: batch_s}
    ours = _ours(client, order, STOPPED, measured.phase)
    return RecordDict({METRICS: MetricRecord(metrics), FEDBALANCER: ours})


def pack_update(sent: Weights | bytes) -> ArrayRecord:
    """An update, compressed or not, as one array."""
    if isinstance(sent, bytes):
        return ArrayRecord({PAYLOAD: Array(np.frombuffer(sent, dtype=np.uint8))})
    return ArrayRecord({VECTOR: Array(np.ascontiguousarray(sent, dtype=np.float32))})


def metric_key(name: str) -> str:
    return name.replace("_", "-")


OUR_METRICS = frozenset({WEIGHT, SIZE, *map(metric_key, SUMMARY), *map(metric_key, MEASURED)})


def _ours(client: str, order: Order, outcome: str, phase: str) -> ConfigRecord:
    return ConfigRecord(
        {"version": VERSION, "client": client, "round": order.round, "outcome": outcome, "phase": phase}
    )
