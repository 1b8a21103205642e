"""Flower's own strategies in the aggregation slot: what goes together, and what is refused by name at the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.flower.compat import (
    Array,
    ArrayRecord,
    Message,
    MetricRecord,
    RecordDict,
    make_reply,
    set_current_arrays,
)
from fedbalancer.flower.evaluation import weighted_mean
from fedbalancer.flower.messages import ARRAYS, METRICS, WEIGHT, InvalidMessage
from fedbalancer.flower.mods import NO_SECURE_AGGREGATION
from fedbalancer.methods.composition import Method

if TYPE_CHECKING:
    from fedbalancer.flower.run import Run

MU_KEY = "proximal-mu"
"""Where Flower's FedProx tells its clients mu."""

NO_EFFECT = {
    "fraction_train": (1.0, "clients_per_round"),
    "min_train_nodes": (2, "clients_per_round"),
    "min_available_nodes": (2, "min_clients"),
    "fraction_evaluate": (1.0, "fraction_evaluate of fedbalancer.flower.Strategy"),
    "min_evaluate_nodes": (2, "min_evaluate_nodes of fedbalancer.flower.Strategy"),
    "weighted_by_key": ("num-examples", "nothing: updates weigh by the samples trained"),
}
"""Arguments of Flower's strategies that say what is said elsewhere here: their default, and where."""
POOLS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
"""Functions that Flower's strategies may be given; theirs unless told."""
OTHER_METHODS = ("configure_train", "configure_evaluate", "aggregate_evaluate")
"""What is not called of a strategy in the aggregation slot."""


def with_aggregator(method: Method, policy: Any) -> Method:
    """The method with another aggregation: a policy of ours as it is, one of Flower's strategies in an adapter."""
    if type(policy).__name__.startswith("SecAgg") and type(policy).__module__.startswith("flwr."):
        raise BadSetting(f"aggregate={type(policy).__name__} {NO_SECURE_AGGREGATION}")
    if not hasattr(policy, "aggregate_train"):
        return method.with_policies(aggregate=policy)

    name = type(policy).__name__
    aggregator = FlowerAggregator(policy)
    _check_configuration(policy, name)
    method_with = method.with_policies(aggregate=aggregator)
    if "FedProx" not in _classes(policy):
        return method_with
    mu = float(policy.proximal_mu)
    if method.client.mu not in (0.0, mu):
        raise BadSetting(f"{name} has mu {mu:g} and the method {method.name} {method.client.mu:g}; choose one of them")
    return method_with.with_policies(mu=mu)


def strategy_config(policy: Any) -> dict[str, float]:
    """What a strategy of Flower tells its clients beside the model."""
    strategy = policy.flower_strategy
    return {MU_KEY: float(strategy.proximal_mu)} if "FedProx" in _classes(strategy) else {}


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy that would not do here what it says."""
    name = type(strategy).__name__
    if any(kind.__module__ == "fedbalancer.flower.strategy" for kind in type(strategy).__mro__):
        raise BadSetting(f"aggregate={name}: it runs rounds of its own; give one of Flower's strategies, or a policy")
    for known in _classes(strategy):
        if known.startswith("DifferentialPrivacy"):
            raise BadSetting(
                f"aggregate={name}: its noise is worked out for num_sampled_clients equal replies, and a round that "
                "closes at its deadline has fewer, of unequal weight: the guarantee would not hold. LocalDpMod on the "
                "clients protects their updates (docs/how-to/flower.md, Privacy)"
            )
        if known.startswith("FedXgb"):
            raise BadSetting(f"aggregate={name}: it collects trees, and this trains vectors of weights")


def _check_configuration(strategy: Any, name: str) -> None:
    """Only a strategy's `aggregate_train` is called: one that does more elsewhere is told."""
    for method in OTHER_METHODS:
        home = next(kind for kind in type(strategy).__mro__ if method in vars(kind))
        if not home.__module__.startswith("flwr."):
            raise BadSetting(
                f"aggregate={name}: its own {method} would not be called; write it in a subclass of "
                f"fedbalancer.flower.Strategy (what is sent may also be said in train_config), and give "
                f"aggregate=FlowerAggregator({name}(...)) if its aggregate_train is all that you want"
            )
    for argument, (default, place) in NO_EFFECT.items():
        value = getattr(strategy, argument, default)
        if value != default:
            raise BadSetting(f"{argument} = {value!r} of aggregate={name} would have no effect; here it is {place}")
    for argument in POOLS:
        given = getattr(strategy, argument, None)
        if given is not None and not getattr(given, "__module__", "").startswith("flwr."):
            raise BadSetting(f"{argument} of aggregate={name} would have no effect; give it to Strategy itself")


def _classes(strategy: Any) -> set[str]:
    return {kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")}


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
        set_current_arrays(self.strategy, _record(state.weights))
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
        return make_reply(RecordDict(content), node)

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
        own = self._run.engine.custom_metrics
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
        own = dict(self._run.engine.custom_metrics[report.client].metric_records[METRICS])
        metrics = own | {WEIGHT: count_of(report.weight), "train_loss": float(report.summary.loss_mean)}
        arrays = self._run.layout.record(_model(state, report))
        return make_reply(RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics)}), node)

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
        except InvalidMessage as problem:
            raise BadData(f"{who} does not fit: {problem}") from problem
        if not np.isfinite(weights).all():
            raise BadData(f"{who} has a value that is not a finite number")
        return weights


def _model(state: ServerState, report: ClientReport) -> Weights:
    """The model that a client's update makes of the server's."""
    return np.asarray(state.weights + report.update, dtype=np.float32)
