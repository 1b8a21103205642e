"""What a client sends back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import Order, Summary, Weights
from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fedbalancer.flower.orders import ARRAYS, METRICS, OURS, VERSION

TRAINED, STOPPED = "trained", "stopped"
PAYLOAD, VECTOR = "fedbalancer.payload", "fedbalancer.vector"
"""The one array of an update, compressed or not: Flower fetches every array by a request of its own."""

SUMMARY = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s")
BATCH_S, WEIGHT, SIZE = "batch-s", "num-examples", "size"
MOST_METRICS, LONGEST_NAME = 100, 100
RELEASED = "released"
MEASURED = ("epochs", "busy_s", "forward_s", "train_s")


@dataclass(frozen=True)
class Measured:
    """What a client measured on its own clock; `phase` is where it stood when it stopped itself."""

    epochs: float
    busy_s: float
    forward_s: float
    train_s: float
    phase: str = ""


def pack_report(
    client: str, order: Order, arrays: ArrayRecord, summary: Summary, measured: Measured,
    more: Mapping[str, float] | None = None, size: int | None = None,
) -> RecordDict:  # fmt: skip
    """A report as Flower's records, with `more` metrics of the user's. `size` is the client's current number of
    samples, None if it is withheld."""
    metrics: dict[str, Any] = {WEIGHT: summary.trained} | ({} if size is None else {SIZE: size})
    metrics |= {dashed(name): float(getattr(summary, name)) for name in SUMMARY}
    metrics |= {dashed(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= more or {}
    if summary.released:
        metrics[RELEASED] = list(summary.released)
    return RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics), OURS: _ours(client, order, TRAINED, "")})


def checked_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Metrics of the user's own, if they can be sent: their names must not be ours."""
    found = dict(metrics or {})
    for name, value in found.items():
        if name in OUR_METRICS:
            raise BadSetting(f"metrics: {name!r} is a name of fedbalancer's own; choose another")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadData(f"metrics: {name} = {value!r} must be a finite number")
    return found


def own_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a reply has beside our metrics: finite numbers under names of a sensible length, and not too many."""
    found = {name: value for name, value in metrics.items() if name not in OUR_METRICS and len(name) <= LONGEST_NAME}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)}
    return dict(list(numbers.items())[:MOST_METRICS])


def pack_stopped(client: str, order: Order, measured: Measured, batch_s: float | None = None) -> RecordDict:
    """The word of a client that has nothing to report but, if it trained at all, how long its batches took."""
    metrics: dict[str, Any] = {dashed(name): float(getattr(measured, name)) for name in MEASURED}
    metrics |= {} if batch_s is None else {BATCH_S: batch_s}
    ours = _ours(client, order, STOPPED, measured.phase)
    return RecordDict({METRICS: MetricRecord(metrics), OURS: ours})


def pack_update(sent: Weights | bytes) -> ArrayRecord:
    """An update, compressed or not, as one array."""
    if isinstance(sent, bytes):
        return ArrayRecord({PAYLOAD: Array(np.frombuffer(sent, dtype=np.uint8))})
    return ArrayRecord({VECTOR: Array(np.ascontiguousarray(sent, dtype=np.float32))})


def dashed(name: str) -> str:
    return name.replace("_", "-")


OUR_METRICS = frozenset({WEIGHT, SIZE, *map(dashed, SUMMARY), *map(dashed, MEASURED)})


def _ours(client: str, order: Order, outcome: str, phase: str) -> ConfigRecord:
    return ConfigRecord(
        {"version": VERSION, "client": client, "round": order.round, "outcome": outcome, "phase": phase}
    )
