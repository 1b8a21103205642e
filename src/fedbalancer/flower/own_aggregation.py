"""An `aggregate_train` of the user's own, in the aggregation slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.errors import BadData
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.flower.aggregate import count_of
from fedbalancer.flower.compat import ArrayRecord, Message, MetricRecord, RecordDict, made_reply
from fedbalancer.flower.evaluation import weighted_mean
from fedbalancer.flower.layout import Faulty
from fedbalancer.flower.orders import ARRAYS, METRICS
from fedbalancer.flower.replies import WEIGHT

if TYPE_CHECKING:
    from fedbalancer.flower.run import Run

Round = tuple[Setup, ServerState, dict[int, ClientReport]]


class OwnAggregation(Wrapping, Aggregator):
    """Calls the strategy's `aggregate_train` with the reports of a round as Flower's messages. What that gives to ours
    (`super().aggregate_train`) goes to the policy of the method: as it came where it was not touched, otherwise as the
    difference of its model to that of the server."""

    def __init__(self, run: Run) -> None:
        self._run, self.inner = run, run.strategy.method.server.aggregate
        self._round: Round | None = None
        self._memory: Any = None
        self._made: tuple[ArrayRecord, Weights] | None = None
        self.metrics: dict[str, Any] = {}

    def unwrapped(self, state: ServerState) -> ServerState:
        """The state as it is: nothing is added to what the policy remembers."""
        return state

    def init(self, setup: Setup) -> Any:
        return self.inner.init(setup)

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        nodes = self._run.engine.nodes.node_of
        self._round = setup, state, {nodes[report.client]: report for report in reports}
        self._memory, self._made = state.aggregate, None
        replies = [self._reply(state, report, nodes[report.client]) for report in reports]
        return self._called(state.weights, state.round + 1, replies), self._memory

    def of_nobody(self, state: ServerState) -> Weights:
        """The model after a round, `state`'s last, in which nobody reported: Flower's users are called then, too."""
        self._round = self._made = None
        return self._called(state.weights, state.round, [])

    def of(self, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the policy of the method makes of these replies."""
        given = [reply for reply in replies if reply.has_content()]
        if self._round is None or (not given and self.model_noise_multiplier is None):
            return None, None
        setup, state, reports = self._round
        weights, self._memory = self.inner.aggregate(setup, state, [self._read(r, state, reports) for r in given])
        self._made = self._run.layout.record(weights), weights
        pool = self._run.strategy.train_metrics_aggr_fn or weighted_mean
        own = self._run.engine.own_metrics
        told = [own[reports[r.metadata.src_node_id].client] for r in given]
        return self._made[0], pool(told, WEIGHT) if told else None

    def _called(self, weights: Weights, round: int, replies: list[Message]) -> Weights:
        arrays, metrics = self._run.strategy.aggregate_train(round, replies)
        self.metrics = dict(metrics or {})
        if arrays is None:
            return weights
        if self._made is not None and arrays is self._made[0]:
            return self._made[1]
        return self._flat(arrays, "the model that aggregate_train returned")

    def _reply(self, state: ServerState, report: ClientReport, node: int) -> Message:
        own = dict(self._run.engine.own_metrics[report.client].metric_records[METRICS])
        metrics = own | {WEIGHT: count_of(report.weight), "train_loss": float(report.summary.loss_mean)}
        arrays = self._run.layout.record(_model(state, report))
        return made_reply(RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics)}), node)

    def _read(self, reply: Message, state: ServerState, reports: dict[int, ClientReport]) -> ClientReport:
        """The report of a reply that the user has had in his hands."""
        report = reports.get(reply.metadata.src_node_id)
        if report is None:
            raise BadData(f"aggregate_train was given a reply of node {reply.metadata.src_node_id}, which sent none")
        who = f"the reply of client {report.client!r} that aggregate_train was given"
        if ARRAYS not in reply.content.array_records or METRICS not in reply.content.metric_records:
            raise BadData(f"{who} has no records {ARRAYS!r} and {METRICS!r}")
        weight = reply.content.metric_records[METRICS].get(WEIGHT)
        if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise BadData(f"{who} has {WEIGHT} {weight!r}, which must be a number over 0")
        model = self._flat(reply.content.array_records[ARRAYS], who)
        before = self._flat(self._run.layout.record(_model(state, report)), who)
        update = report.update if np.array_equal(model, before) else model - state.weights
        return replace(report, update=update, weight=float(weight))

    def _flat(self, arrays: ArrayRecord, who: str) -> Weights:
        try:
            weights = self._run.layout.flat(arrays)
        except Faulty as problem:
            raise BadData(f"{who} does not fit: {problem}") from problem
        if not np.isfinite(weights).all():
            raise BadData(f"{who} has a value that is not a finite number")
        return weights


def _model(state: ServerState, report: ClientReport) -> Weights:
    """The model that a client's update makes of the server's."""
    return np.asarray(state.weights + report.update, dtype=np.float32)
