"""One of Flower's own strategies in the aggregation slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.flower.compat import Array, ArrayRecord, MetricRecord, RecordDict, made_reply, set_current
from fedbalancer.flower.foreign import check_strategy

WEIGHTS = "weights"


@dataclass(frozen=True, eq=False)
class FlowerMemory:
    """What a strategy remembers: of every attribute in `names` one row of `values`."""

    names: tuple[str, ...] = ()
    values: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True)
class FlowerAggregator(Aggregator):
    """`strategy.aggregate_train` on what the clients sent: FedAdam, FedYogi, Krum and the others, as Flower has them.

    The strategy sees the model as one array. What it keeps in the attributes `remembers` is put back before every round
    and saved with the checkpoint; a strategy that keeps more than that elsewhere starts afresh after a resume.
    """

    strategy: Any
    remembers: tuple[str, ...] = ("m_t", "v_t", "momentum_vector")

    def __post_init__(self) -> None:
        check_strategy(self.strategy)

    @property
    def flower_strategy(self) -> Any:
        return self.strategy

    def init(self, setup: Setup) -> FlowerMemory:
        return FlowerMemory()

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, FlowerMemory]:
        own: FlowerMemory = state.aggregate
        for name, values in zip(own.names, own.values, strict=True):
            setattr(self.strategy, name, {WEIGHTS: values.copy()})
        set_current(self.strategy, _record(state.weights))
        replies = [self._reply(state, report, node) for node, report in enumerate(reports, start=2)]
        arrays, _ = self.strategy.aggregate_train(state.round + 1, replies)
        if arrays is None:
            return state.weights, own
        weights = arrays[WEIGHTS].numpy().astype(np.float32)
        if not np.isfinite(weights).all():
            return state.weights, own
        return weights, self._memory()

    @staticmethod
    def _reply(state: ServerState, report: ClientReport, node: int) -> Any:
        metrics: dict[str, Any] = {
            "num-examples": count_of(report.weight),
            "train_loss": float(report.summary.loss_mean),
        }
        content: dict[str, Any] = {"arrays": _record(state.weights + report.update), "metrics": MetricRecord(metrics)}
        return made_reply(RecordDict(content), node)

    def _memory(self) -> FlowerMemory:
        kept = {name: getattr(self.strategy, name, None) for name in self.remembers}
        found = {name: value[WEIGHTS] for name, value in kept.items() if isinstance(value, dict) and WEIGHTS in value}
        if not found:
            return FlowerMemory()
        return FlowerMemory(tuple(found), np.stack([np.asarray(value, dtype=np.float64) for value in found.values()]))


def count_of(weight: float) -> float:
    """A weight as Flower's clients have it, a whole number, unless a stale report weighs less than it has samples."""
    return int(weight) if weight == int(weight) else weight


def _record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({WEIGHTS: Array(np.ascontiguousarray(weights, dtype=np.float32))})
