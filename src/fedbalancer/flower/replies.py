"""What a client sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.flower.compat import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fedbalancer.flower.orders import ARRAYS, METRICS, OURS, VERSION
from fedbalancer.types import Order, Summary, Weights

TRAINED, STOPPED = "trained", "stopped"
PAYLOAD, VECTOR = "fedbalancer.payload", "fedbalancer.vector"
"""The one array of an update, compressed or not: Flower fetches every array by a request of its own."""

SUMMARY = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s")
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


def pack_report(client: str, order: Order, arrays: ArrayRecord, summary: Summary, measured: Measured) -> RecordDict:
    """A report as Flower's records."""
    metrics: dict[str, Any] = {"num-examples": summary.trained}
    metrics |= {dashed(name): float(getattr(summary, name)) for name in SUMMARY}
    metrics |= {dashed(name): float(getattr(measured, name)) for name in MEASURED}
    if summary.released:
        metrics[RELEASED] = list(summary.released)
    return RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics), OURS: _ours(client, order, TRAINED, "")})


def pack_stopped(client: str, order: Order, measured: Measured) -> RecordDict:
    """The word of a client that has nothing to report."""
    metrics: dict[str, Any] = {dashed(name): float(getattr(measured, name)) for name in MEASURED}
    ours = _ours(client, order, STOPPED, measured.phase)
    return RecordDict({METRICS: MetricRecord(metrics), OURS: ours})


def pack_update(sent: Weights | bytes) -> ArrayRecord:
    """An update, compressed or not, as one array."""
    if isinstance(sent, bytes):
        return ArrayRecord({PAYLOAD: Array(np.frombuffer(sent, dtype=np.uint8))})
    return ArrayRecord({VECTOR: Array(np.ascontiguousarray(sent, dtype=np.float32))})


def dashed(name: str) -> str:
    return name.replace("_", "-")


def _ours(client: str, order: Order, outcome: str, phase: str) -> ConfigRecord:
    return ConfigRecord(
        {"version": VERSION, "client": client, "round": order.round, "outcome": outcome, "phase": phase}
    )
