"""Reading of replies and greetings on the server. Every number is checked before any policy sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.round import decode_update
from fedbalancer.core.contracts import Compressor, Summarizer
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport, Order, Shapes, Summary, Timings, Weights
from fedbalancer.flower.compat import (
    ArrayRecord,
    ConfigRecord,
    Message,
    RecordDict,
)
from fedbalancer.flower.events import shorten
from fedbalancer.flower.messages import (
    ARRAYS,
    BATCH_S,
    DECLINED,
    FEDBALANCER,
    LONGEST_REASON,
    MEASURED,
    METRICS,
    MOST_LATENCIES,
    PAYLOAD,
    REASON,
    RELEASED,
    SIZE,
    STOPPED,
    SUMMARY,
    TRAINED,
    VECTOR,
    VERSION,
    ClientMeasurements,
    check_version,
    metric_key,
    read_arrays,
    read_tags,
    read_text,
    version_fields,
)
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout, read_array
from fedbalancer.server.report_check import find_fault, find_size_fault

MOST_SAMPLES = 100_000
"""Samples that a client may have; default of `Strategy(most_samples=...)`."""
MOST_BATCH_S = 3600.0
BIGGEST_CHANGE = 1e9
"""Largest change of one parameter in one round."""
BIGGEST_STATISTIC = 1e50
"""Largest loss statistic: sums over clients, and their squares, must stay finite."""

CLOCK_SLACK_S = 5.0
"""Largest accepted difference between the clocks of client and server, in seconds."""


class UnannouncedSize(InvalidMessage):
    """A number of samples that the client must announce in a greeting before it reports it."""


@dataclass(frozen=True, eq=False)
class Expected:
    """The constraints on the reply of one client in one round.

    Args:
        client: Id of the client.
        size: Last known number of its samples.
        order: The order.
        weights: The model that was sent.
        layout: Layout of the model.
        compress: The method's compression.
        summary: The method's summary.
        most_samples: Largest number of samples.
        arrays: Names and shapes of the method's arrays.
        part: Which parameters the client trains. None: all.
        batch_share: `ClientReport.batch_share` of the part.
        sums_only: Whether update and numbers of the summary arrive as a sum only.
    """

    client: str
    size: int
    order: Order
    weights: Weights
    layout: ModelLayout
    compress: Compressor
    summary: Summarizer
    most_samples: int = MOST_SAMPLES
    arrays: Shapes = field(default_factory=dict)
    part: NDArray[np.bool_] | None = None
    batch_share: float = 1.0
    sums_only: bool = False


def unpack(message: Message, expected: Expected, round_trip_s: float) -> tuple[ClientReport | None, ClientMeasurements]:
    """Read a reply.

    Args:
        message: The reply.
        expected: What it must fit.
        round_trip_s: Seconds from the order to the reply.

    Returns:
        The report, None if the client stopped at the deadline without one, and the client's measurements.

    Raises:
        InvalidMessage: The reply is invalid.
    """
    try:
        content = message.content
        ours, metrics = content.config_records[FEDBALANCER], content.metric_records[METRICS]
        check_version(ours)
        client, outcome, phase = read_text(ours, "client"), read_text(ours, "outcome"), read_text(ours, "phase")
    except (KeyError, ValueError, BadSetting) as error:
        raise InvalidMessage(f"not a report of this wire format: {error}") from error
    if client != expected.client or ours.get("round") != expected.order.round:
        raise InvalidMessage(f"a report of client {client!r} for round {ours.get('round')!r}")
    measured = _measured(metrics, phase, round_trip_s)
    if outcome == STOPPED:
        return None, measured
    if outcome == DECLINED:
        return None, replace(measured, phase=DECLINED, declined=shorten(str(ours.get(REASON, ""))[:LONGEST_REASON]))
    if outcome != TRAINED:
        raise InvalidMessage(f"outcome {outcome!r}")
    return _report(content, metrics, measured, expected, round_trip_s), measured


def _report(
    content: RecordDict,
    metrics: Mapping[str, Any],
    measured: ClientMeasurements,
    expected: Expected,
    round_trip_s: float,
) -> ClientReport:
    size = _size(metrics, expected)
    trained = _number(metrics, "num-examples")
    withheld = expected.summary.is_private
    if withheld and trained != 0:
        raise InvalidMessage(f"weight {trained:g}, which must be 0: a private summary withholds the count")
    if not withheld and (not 1 <= trained <= size or trained != int(trained)):
        raise InvalidMessage(f"weight {trained:g}, which must be a whole number from 1 to its {size} samples")
    values = {name: _number(metrics, metric_key(name)) for name in SUMMARY}
    if values["batch_s"] <= 0 or not 0 <= values["loss_count"] <= size:
        raise InvalidMessage(f"batch_s {values['batch_s']:g} and loss_count {values['loss_count']:g}")
    if values["batch_s"] > round_trip_s + CLOCK_SLACK_S or max(map(abs, values.values())) > BIGGEST_STATISTIC:
        raise InvalidMessage(f"an impossible summary for a round trip of {round_trip_s:.1f} s: {values}")
    timings = split_timings(measured, round_trip_s)
    released = () if expected.sums_only else _released(metrics, expected.summary, size)
    summary = Summary(**values, trained=int(trained), released=released, read_by_server=False, estimated=False)
    if problem := expected.summary.statistics_fault(summary, size):
        raise InvalidMessage(problem)
    update = np.zeros_like(expected.weights) if expected.sums_only else _update(content, expected)
    weight = 1.0 if withheld else float(trained)
    report = ClientReport(
        expected.client, update, weight, measured.epochs, summary, timings, size=size,
        arrays=read_arrays(content, expected.arrays), part=expected.part,
        batch_share=expected.batch_share,
    )  # fmt: skip
    noise, arrays = expected.summary.loss_noise, expected.arrays
    if problem := find_fault(report, expected.weights, expected.size, expected.order, noise, CLOCK_SLACK_S, arrays):
        raise InvalidMessage(problem)
    if np.abs(update).max(initial=0.0) > BIGGEST_CHANGE:
        raise InvalidMessage(f"a change of {np.abs(update).max():g} in one parameter")
    return report


def _size(metrics: Mapping[str, Any], expected: Expected) -> int:
    """Return the client's current number of samples, which may differ from the last known one."""
    size = metrics.get(SIZE, expected.size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise InvalidMessage(f"{SIZE} {size!r}, which must be a whole number")
    if (problem := find_size_fault(size, expected.size)) is not None:
        raise UnannouncedSize(problem)
    if size > expected.most_samples:
        raise InvalidMessage(f"{SIZE} {size}, which is at most {expected.most_samples} (most_samples)")
    return size


def _released(metrics: Mapping[str, Any], summary: Summarizer, size: int) -> tuple[float, ...]:
    """Return the released numbers that the server part of the summary reads; empty if it has none."""
    if not summary.releases_numbers:
        return ()
    numbers = metrics.get(RELEASED)
    if not isinstance(numbers, list) or not all(isinstance(value, int | float) for value in numbers):
        raise InvalidMessage(f"no numbers under {RELEASED!r}")
    values = tuple(map(float, numbers))
    if problem := summary.fault(values, size):
        raise InvalidMessage(problem)
    if max(map(abs, values)) > BIGGEST_STATISTIC:
        raise InvalidMessage(f"{max(map(abs, values)):g} among the numbers under {RELEASED!r}")
    return values


def split_timings(measured: ClientMeasurements, round_trip_s: float) -> Timings:
    """Split a round trip into download, forward pass, training and upload.

    Server and client have no common clock, so the remaining time is split evenly between download and upload.
    """
    transport_s = max(round_trip_s - measured.forward_s - measured.train_s, 0.0) / 2
    return Timings(transport_s, measured.forward_s, measured.train_s, transport_s)


def busy_s(message: Message, round_trip_s: float) -> float:
    """Return the busy seconds of a reply that does not count; the whole round trip if they are invalid."""
    for record in message.content.metric_records.values():
        value = record.get("busy-s")
        if isinstance(value, int | float) and 0 <= value <= round_trip_s:
            return float(value)
    return round_trip_s


def batch_s_of(message: Message, round_trip_s: float) -> float | None:
    """Return the seconds per batch of a reply that does not count; None if they are invalid."""
    for record in message.content.metric_records.values():
        value = record.get(BATCH_S)
        if isinstance(value, int | float) and 0 < value <= round_trip_s:
            return float(value)
    return None


def _update(content: RecordDict, expected: Expected) -> Weights:
    arrays = content.array_records.get(ARRAYS)
    if arrays is None:
        raise InvalidMessage("no arrays")
    if expected.compress.is_identity:
        return _plain_update(arrays, expected)
    if set(arrays) != {PAYLOAD}:
        raise InvalidMessage(f"arrays {sorted(arrays)[:3]} in place of one compressed payload")
    length = expected.compress.encoded_bytes(expected.layout.layout)
    payload = read_array(PAYLOAD, arrays[PAYLOAD], (length,), np.dtype(np.uint8)).tobytes()
    try:
        with np.errstate(all="ignore"):
            return decode_update(payload, expected.compress, expected.layout.layout, expected.order, expected.client)
    except ValueError as error:
        raise InvalidMessage(f"a payload that cannot be decoded: {error}") from error


def _plain_update(arrays: ArrayRecord, expected: Expected) -> Weights:
    """Return an uncompressed update: as one vector, or the difference between a named model and the old one."""
    if expected.part is not None:
        return _update_of_part(arrays, expected.weights, expected.part)
    if set(arrays) == {VECTOR}:
        return read_array(VECTOR, arrays[VECTOR], expected.weights.shape, np.dtype(np.float32))
    with np.errstate(all="ignore"):
        return np.asarray(expected.layout.flat(arrays) - expected.weights, dtype=np.float32)


def _update_of_part(arrays: ArrayRecord, weights: Weights, part: NDArray[np.bool_]) -> Weights:
    """Return the update of a client that trained a part of the model; 0 outside of it."""
    if set(arrays) != {VECTOR}:
        raise InvalidMessage(f"arrays {sorted(arrays)[:3]} in place of one vector")
    update = np.zeros_like(weights)
    update[part] = read_array(VECTOR, arrays[VECTOR], (int(part.sum()),), np.dtype(np.float32))
    return update


def _measured(metrics: Mapping[str, Any], phase: str, round_trip_s: float) -> ClientMeasurements:
    values = {name: _number(metrics, metric_key(name)) for name in MEASURED}
    if min(values.values()) < 0 or max(values["forward_s"], values["train_s"]) > values["busy_s"] + CLOCK_SLACK_S:
        raise InvalidMessage(f"impossible seconds: {values}")
    if values["busy_s"] > round_trip_s + CLOCK_SLACK_S:
        raise InvalidMessage(f"{values['busy_s']:.1f} busy seconds in a round trip of {round_trip_s:.1f}")
    return ClientMeasurements(values["epochs"], values["busy_s"], values["forward_s"], values["train_s"], phase)


def _number(metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidMessage(f"{name} {value!r}, which must be a finite number")
    return float(value)


@dataclass(frozen=True)
class Greeting:
    """The introduction of a client.

    Args:
        client: Its id.
        size: Number of samples.
        batch_s: Measured seconds of some training batches; may be empty.
        network_s: Transport time of the greeting.
        version: Version of the wire format that the client uses.
        tags: Its tags.
        changing: Whether its tags may change.
    """

    client: str
    size: int
    batch_s: tuple[float, ...]
    network_s: float
    version: int = VERSION
    tags: frozenset[str] = frozenset()
    changing: bool = False


def greeting_request(run_key: str, batch_size: int, latencies: int) -> RecordDict:
    """Return the request for a greeting.

    Args:
        run_key: Name of the run.
        batch_size: Samples per batch.
        latencies: Number of batches to time.
    """
    request: dict[str, Any] = {"run-key": run_key, "batch-size": batch_size, "latencies": latencies} | version_fields()
    return RecordDict({FEDBALANCER: ConfigRecord(request)})


def read_greeting(message: Message, round_trip_s: float, most_samples: int) -> Greeting:
    """Read a greeting.

    Args:
        message: The reply to `greeting_request`.
        round_trip_s: Seconds from the request to the reply.
        most_samples: Largest number of samples.

    Raises:
        InvalidMessage: The greeting is invalid.
    """
    try:
        ours, metrics = message.content.config_records[FEDBALANCER], message.content.metric_records[METRICS]
        version = check_version(ours)
        client = read_text(ours, "client")
    except (KeyError, ValueError, BadSetting) as error:
        raise InvalidMessage(f"not a greeting of this wire format: {error}") from error
    size, latencies, busy_s = metrics.get("num-examples"), metrics.get("batch-s"), metrics.get("busy-s")
    if not client or isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most_samples:
        raise InvalidMessage(f"client {client!r} with {size!r} samples; 1 to {most_samples} are allowed (most_samples)")
    if not isinstance(latencies, list) or len(latencies) > MOST_LATENCIES:
        raise InvalidMessage("batch latencies that are not a short list")
    if any(not 0 < seconds <= MOST_BATCH_S for seconds in latencies):
        raise InvalidMessage(f"a batch latency that is not a number over 0 and up to {MOST_BATCH_S:g} s")
    if not isinstance(busy_s, int | float) or not 0 <= busy_s < math.inf:
        raise InvalidMessage(f"busy seconds {busy_s!r}")
    network_s = max(round_trip_s - busy_s, 0.0)
    tags = read_tags(ours) or frozenset()
    return Greeting(client, size, tuple(map(float, latencies)), network_s, version, tags, ours.get("changing") is True)
