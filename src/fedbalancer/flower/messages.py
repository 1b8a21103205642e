"""The wire format: the model's arrays, the server's instructions and the clients' replies.

Nothing is unpickled, and no memory is allocated before the size of an array is checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer import __version__
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.fields import check_fields
from fedbalancer.core.optimizers import optimizer_text
from fedbalancer.core.types import Arrays, Layout, Order, Shapes, Summary, TrainOptions, Weights
from fedbalancer.core.types.layout import find_name_fault
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from fedbalancer.flower.model_arrays import InvalidMessage, read_array, reorder

OLDEST, VERSION = 3, 4
"""Versions of the wire format: the oldest that is still served, and the newest.

Version 4 adds tags to greetings and replies, greetings that only refresh tags, and declined rounds. A greeting request
has the oldest version, so that older clients understand it, and lists all. The client answers with the newest common
version, which the server uses from then on.
"""

FEDBALANCER, ARRAYS, CONFIG, METRICS = "fedbalancer", "arrays", "config", "metrics"
"""Records of a message. All but the first have Flower's usual names."""
METHOD_ARRAYS = "fedbalancer.arrays"
"""Record with the named arrays that a method sends besides the model, in both directions."""

HELLO = "query.fedbalancer"
TRAIN, EVALUATE = "train", "evaluate"

POLICIES_CHARACTERS = 20_000
MOST_LATENCIES = 1000
"""Batches that a client times for its greeting."""
_NONE = -1


@dataclass(frozen=True)
class Instruction:
    """An order, and what a client needs to carry it out.

    Args:
        client: Id of the client.
        order: The order.
        budget_s: Seconds from the client's start to its report: the deadline minus transport.
        accepted_round: Last round in which the server accepted the client's report.
        batch_s: Seconds per batch as the server knows it, for a client that has lost its memory.
        run_key: Name of the run.
        method: Name of the method.
        policies: The method's client policies (`ClientPolicies.to_json`); "" for custom policies.
        late_counts: Whether a report counts after the deadline.
        rank: Share of the clients that are slower, by which the policy in slot `part` decides.
        version: Version of the wire format that the client uses.
        sum_bits: Fractional bits of an update under secure aggregation; 0 without it.
        sum_clip: Largest change of one parameter under secure aggregation.
    """

    client: str
    order: Order
    budget_s: float
    accepted_round: int
    batch_s: float
    run_key: str
    method: str
    policies: str
    late_counts: bool = False
    rank: float = 0.0
    version: int = VERSION
    sum_bits: int = 0
    sum_clip: float = 0.0

    def record(self) -> ConfigRecord:
        """Return the instruction as a record."""
        order = self.order
        return ConfigRecord({
            "version": self.version, "client": self.client, "round": order.round,
            "loss-threshold": order.loss_threshold,
            "deadline-s": float(order.deadline_s), "epochs": order.epochs, "batch-size": order.batch_size,
            "seed": order.seed, "sample-cap": _NONE if order.sample_cap is None else order.sample_cap,
            "epoch-batches": _NONE if order.epoch_batches is None else order.epoch_batches,
            "budget-s": float(self.budget_s), "learning-rate": order.rate_of(self.client),
            "clip-norm": float(_NONE) if order.clip_norm is None else order.clip_norm,
            "accepted-round": self.accepted_round, "batch-s": self.batch_s, "run-key": self.run_key,
            "method": self.method, "policies": self.policies, "late-counts": self.late_counts, "rank": self.rank,
            "share": float(order.shares.get(self.client, _NONE)), "steps": int(order.steps.get(self.client, _NONE)),
            "sum-bits": self.sum_bits, "sum-clip": self.sum_clip,
            "optimizer": order.training.optimizer, "accumulate": order.training.accumulate,
            "dtype": order.training.dtype, "drop-last": order.training.drop_last,
            "batch-norm": order.training.batch_norm, "optimizer-state": order.training.optimizer_state,
        })  # fmt: skip

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Instruction:
        """Read an instruction.

        Raises:
            BadSetting: A field is missing or invalid.
        """
        version = check_version(record)
        cap, cut, clip = (_number(record, name) for name in ("sample-cap", "epoch-batches", "clip-norm"))
        client, share = read_text(record, "client"), _number({"share": record.get("share", _NONE)}, "share")
        steps = _number({"steps": record.get("steps", _NONE)}, "steps")
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
            training=_read_training(record),
            shares={} if share < 0 else {client: share},
            steps={} if steps < 1 else {client: int(steps)},
        )
        return cls(
            client=client,
            order=order,
            budget_s=_number(record, "budget-s", endless=True),
            accepted_round=_whole(record, "accepted-round", 0),
            batch_s=_number(record, "batch-s"),
            run_key=read_text(record, "run-key"),
            method=read_text(record, "method"),
            policies=read_text(record, "policies", POLICIES_CHARACTERS),
            late_counts=record.get("late-counts", False) is True,
            rank=_number({"rank": record.get("rank", 0.0)}, "rank"),
            version=version,
            sum_bits=_whole({"sum-bits": record.get("sum-bits", 0)}, "sum-bits", 0),
            sum_clip=_number({"sum-clip": record.get("sum-clip", 0.0)}, "sum-clip"),
        )

    def client_policies(self) -> ClientPolicies:
        """Return the client policies.

        Raises:
            BadSetting: The server has custom policies, which the client must have, too.
        """
        if not self.policies:
            raise BadSetting(f"method {self.method!r} has custom policies; give the client the same method: method=...")
        return ClientPolicies.from_json(self.policies, sums_only=self.sum_bits > 0)


def round_of(message: Message) -> int:
    """Return the round number of a train message."""
    return int(str(message.content.config_records[FEDBALANCER]["round"]))


def version_fields() -> dict[str, Any]:
    """Return the fields of a greeting request that older and newer clients read."""
    return {"version": OLDEST, "versions": list(range(OLDEST, VERSION + 1)), "software": __version__}


def check_version(record: Mapping[str, Any]) -> int:
    """Return the version of a record.

    Raises:
        BadSetting: The version is not supported; the message says what to install where.
    """
    version = record.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or not OLDEST <= version <= VERSION:
        raise BadSetting(_advice([version], record.get("software")))
    return version


def common_version(record: Mapping[str, Any]) -> int:
    """Return the newest version that this side and the sender of a greeting request have in common.

    Args:
        record: The request. A server of version 3 does not list its versions.

    Raises:
        BadSetting: There is none; the message says what to install where.
    """
    offered = record.get("versions")
    versions = offered if isinstance(offered, list) else [record.get("version")]
    numbers = [version for version in versions if isinstance(version, int)]
    common = [version for version in numbers if OLDEST <= version <= VERSION]
    if not common:
        raise BadSetting(_advice(versions, record.get("software")))
    return max(common)


def _advice(versions: Sequence[Any], software: Any) -> str:
    """Return one sentence about versions that do not fit: what to install, and where."""
    numbers = [version for version in versions if isinstance(version, int)]
    theirs = f"version {', '.join(map(str, versions))} of the wire format"
    ours = f"fedbalancer {__version__} here has versions {OLDEST} to {VERSION}"
    if numbers and min(numbers) > VERSION:
        known = re.fullmatch(r"[\w.+-]{1,40}", software) if isinstance(software, str) else None
        newer = f"fedbalancer=={software}" if known else "a newer fedbalancer"
        return f"the other side has {theirs} and {ours}; install {newer} here"
    return f"the other side has {theirs} and {ours}; install fedbalancer=={__version__} there"


def read_text(record: Mapping[str, Any], name: str, most: int = 200) -> str:
    """Return a text field of at most `most` characters."""
    value = record.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise BadSetting(f"{name} must be a text of at most {most} characters")
    return value


def _read_training(record: Mapping[str, Any]) -> TrainOptions:
    """Return how batches become steps; the optimizer must be one of the known names."""
    options = TrainOptions(
        optimizer=optimizer_text(read_text(record, "optimizer", POLICIES_CHARACTERS)),
        accumulate=_whole(record, "accumulate", 1),
        dtype=read_text(record, "dtype"),  # type: ignore[arg-type] # checked below
        drop_last=record.get("drop-last") is True,
        batch_norm=read_text(record, "batch-norm"),  # type: ignore[arg-type] # checked below
        optimizer_state=read_text(record, "optimizer-state"),  # type: ignore[arg-type] # checked below
    )
    check_fields(options)
    return options


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


TRAINED, STOPPED, DECLINED = "trained", "stopped", "declined"
PAYLOAD, VECTOR = "fedbalancer.payload", "fedbalancer.vector"
"""Name of the only array of an update, compressed or not: Flower needs one request per array."""

SUMMARY = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s")
BATCH_S, WEIGHT, SIZE = "batch-s", "num-examples", "size"
MOST_METRICS, LONGEST_NAME = 100, 100
TAGS, MOST_TAGS, LONGEST_TAG = "tags", 50, 50
REASON, LONGEST_REASON, DECLINES_SINCE = "reason", 200, 4
RELEASED = "released"
MEASURED = ("epochs", "busy_s", "forward_s", "train_s")


@dataclass(frozen=True)
class ClientMeasurements:
    """Measurements on the client's clock.

    Args:
        epochs: Local epochs done.
        busy_s: Seconds from start to report.
        forward_s: Seconds of the forward pass.
        train_s: Seconds of training.
        phase: What the client was doing when it stopped at the deadline; "" if it did not.
        declined: Why the client did not take part in the round; "" if it did.
    """

    epochs: float
    busy_s: float
    forward_s: float
    train_s: float
    phase: str = ""
    declined: str = ""


def pack_report(
    client: str, order: Order, arrays: ArrayRecord, summary: Summary, measured: ClientMeasurements,
    more: Mapping[str, float] | None = None, size: int | None = None, sent: Arrays | None = None,
    version: int = VERSION, tags: Sequence[str] | None = None,
) -> RecordDict:  # fmt: skip
    """Pack a report.

    Args:
        client: Id of the client.
        order: The order that it answers.
        arrays: The update.
        summary: Statistics of the losses.
        measured: The client's measurements.
        more: Custom metrics.
        size: Current number of samples; None to withhold it.
        sent: Named arrays of the method.
        version: Version of the wire format.
        tags: The client's current tags. None: unchanged.
    """
    metrics: dict[str, Any] = {WEIGHT: summary.trained} | ({} if size is None else {SIZE: size})
    metrics |= {metric_key(name): float(getattr(summary, name)) for name in SUMMARY}
    metrics |= {metric_key(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= more or {}
    if summary.released:
        metrics[RELEASED] = list(summary.released)
    header = _header(client, order, TRAINED, "", version, tags)
    return RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics), FEDBALANCER: header, **pack_arrays(sent or {})})


def pack_arrays(arrays: Arrays) -> dict[str, ArrayRecord]:
    """Return the record with a method's named arrays; nothing if there are none."""
    if not arrays:
        return {}
    packed = {name: Array(np.ascontiguousarray(values, dtype=np.float32)) for name, values in arrays.items()}
    return {METHOD_ARRAYS: ArrayRecord(packed)}


def read_arrays(content: RecordDict, shapes: Shapes) -> Arrays:
    """Return the named arrays of a method.

    Args:
        content: Content of a message.
        shapes: Declared names and shapes.

    Raises:
        InvalidMessage: Names, shapes or types differ from the declared ones.
    """
    record: Mapping[str, Array] = content.array_records.get(METHOD_ARRAYS, {})
    if fault := find_name_fault(record, shapes):
        raise InvalidMessage(fault)
    float32 = np.dtype(np.float32)
    return {name: read_array(name, record[name], tuple(shape), float32) for name, shape in shapes.items()}


def reorder_arrays(arrays: Arrays, order: Layout, wanted: Layout) -> Arrays:
    """Reorder the arrays with one value per parameter from one layout to another.

    Args:
        arrays: Named arrays.
        order: Layout of these vectors.
        wanted: Layout of the result.
    """
    size = (order.parameters,)
    return {name: reorder(each, order, wanted) if each.shape == size else each for name, each in arrays.items()}


def check_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Return custom metrics if they are finite numbers and their names are free."""
    custom = dict(metrics or {})
    for name, value in custom.items():
        if name in OUR_METRICS:
            raise BadSetting(f"metrics: {name!r} is reserved; choose another name")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadData(f"metrics: {name} = {value!r} must be a finite number")
    return custom


def custom_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the custom metrics of a reply: finite numbers, short names, at most `MOST_METRICS`."""
    custom = {name: value for name, value in metrics.items() if name not in OUR_METRICS and len(name) <= LONGEST_NAME}
    numbers = {name: value for name, value in custom.items() if isinstance(value, int | float) and math.isfinite(value)}
    return dict(list(numbers.items())[:MOST_METRICS])


def pack_stopped(
    client: str, order: Order, measured: ClientMeasurements, batch_s: float | None = None, version: int = VERSION,
    tags: Sequence[str] | None = None,
) -> RecordDict:  # fmt: skip
    """Pack the reply of a client that stopped at the deadline without a report; `batch_s` if it trained."""
    metrics: dict[str, Any] = {metric_key(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= {} if batch_s is None else {BATCH_S: batch_s}
    header = _header(client, order, STOPPED, measured.phase, version, tags)
    return RecordDict({METRICS: MetricRecord(metrics), FEDBALANCER: header})


def pack_declined(
    client: str, order: Order, reason: str, version: int = VERSION, tags: Sequence[str] | None = None
) -> RecordDict:
    """Pack the reply of a client that does not take part in a round. Version 3 knows only that it stopped."""
    idle = ClientMeasurements(0.0, 0.0, 0.0, 0.0, "train")
    if version < DECLINES_SINCE:
        return pack_stopped(client, order, idle, version=version)
    content = pack_stopped(client, order, idle, version=version, tags=tags)
    header = content.config_records[FEDBALANCER]
    header["outcome"], header["phase"], header[REASON] = DECLINED, "", reason[:LONGEST_REASON]
    return content


def read_tags(record: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the tags in a record; None if it has none, or if they are invalid.

    Args:
        record: Header of a greeting or a reply.
    """
    tags = record.get(TAGS)
    if not isinstance(tags, list) or len(tags) > MOST_TAGS:
        return None
    return frozenset(tag for tag in tags if isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG)


def pack_update(sent: Weights | bytes) -> ArrayRecord:
    """Pack an update, compressed or not, as one array."""
    if isinstance(sent, bytes):
        return ArrayRecord({PAYLOAD: Array(np.frombuffer(sent, dtype=np.uint8))})
    return ArrayRecord({VECTOR: Array(np.ascontiguousarray(sent, dtype=np.float32))})


def metric_key(name: str) -> str:
    """Return the name of a field as the key of a metric."""
    return name.replace("_", "-")


OUR_METRICS = frozenset({WEIGHT, SIZE, *map(metric_key, SUMMARY), *map(metric_key, MEASURED)})


def _header(
    client: str, order: Order, outcome: str, phase: str, version: int, tags: Sequence[str] | None
) -> ConfigRecord:
    header = ConfigRecord(
        {"version": version, "client": client, "round": order.round, "outcome": outcome, "phase": phase}
    )
    if tags is not None and version >= DECLINES_SINCE:
        header[TAGS] = list(tags) or [""]  # an empty list has no type in a record
    return header
