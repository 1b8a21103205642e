"""Flower's strategies, and a user's own `aggregate_train`, in the aggregation slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.flower.compat import (
    Array,
    ArrayRecord,
    FlowerStrategy,
    Message,
    MetricRecord,
    RecordDict,
    make_reply,
    set_current_arrays,
)
from fedbalancer.flower.evaluation import CombineMetrics, weighted_mean
from fedbalancer.flower.messages import ARRAYS, METRICS, WEIGHT
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout
from fedbalancer.flower.mods import NO_SECURE_AGGREGATION
from fedbalancer.methods.composition import Method
from fedbalancer.methods.policy_registry import base_advice

MU_KEY = "proximal-mu"
"""Key under which Flower's FedProx sends mu to its clients."""

NO_EFFECT = {
    "fraction_train": (1.0, "clients_per_round"),
    "min_train_nodes": (2, "clients_per_round"),
    "min_available_nodes": (2, "min_clients"),
    "fraction_evaluate": (1.0, "fraction_evaluate of fedbalancer.flower.Strategy"),
    "min_evaluate_nodes": (2, "min_evaluate_nodes of fedbalancer.flower.Strategy"),
    "weighted_by_key": ("num-examples", "nothing: updates weigh by the samples trained"),
}
"""Arguments of Flower's strategies that would have no effect: their default, and the setting to use instead."""
METRIC_FUNCTIONS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
OTHER_METHODS = ("configure_train", "configure_evaluate", "aggregate_evaluate")
"""Methods of a strategy that are not called in the aggregation slot."""
WEIGHTS = "weights"

AggregateTrain = Callable[[int, Iterable[Message]], tuple[ArrayRecord | None, MetricRecord | None]]


def with_aggregator(method: Method, policy: Any) -> Method:
    """Replace the aggregation of a method.

    Args:
        method: The method.
        policy: An aggregation policy, or one of Flower's strategies.

    Raises:
        BadSetting: The strategy cannot work here, or has settings that would have no effect.
    """
    name = type(policy).__name__
    if name.startswith("SecAgg") and type(policy).__module__.startswith("flwr."):
        raise BadSetting(f"aggregate={name} {NO_SECURE_AGGREGATION}")
    if isinstance(policy, Aggregator):
        return method.with_policies(aggregate=policy)
    strategy: Any = policy
    if not isinstance(strategy, FlowerStrategy):
        raise BadSetting(
            f"aggregate={name} is neither a Flower strategy nor a policy: {base_advice('aggregate', policy)}"
        )
    aggregator = FlowerAggregator(policy)
    _check_configuration(policy, name)
    replaced = method.with_policies(aggregate=aggregator)
    if "FedProx" not in _flower_classes(policy):
        return replaced
    mu = float(policy.proximal_mu)
    if method.client.mu not in (0.0, mu):
        raise BadSetting(f"{name} has mu {mu:g} and the method {method.name} {method.client.mu:g}; choose one of them")
    return replaced.with_policies(mu=mu)


def strategy_config(policy: Any) -> dict[str, float]:
    """Return what one of Flower's strategies sends to its clients besides the model."""
    strategy = policy.flower_strategy
    return {MU_KEY: float(strategy.proximal_mu)} if "FedProx" in _flower_classes(strategy) else {}


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy that would not work as documented by Flower."""
    name = type(strategy).__name__
    if any(kind.__module__ == "fedbalancer.flower.strategy" for kind in type(strategy).__mro__):
        raise BadSetting(f"aggregate={name}: it runs its own rounds; use one of Flower's strategies, or a policy")
    for kind in _flower_classes(strategy):
        if kind.startswith("DifferentialPrivacy"):
            raise BadSetting(
                f"aggregate={name}: its noise is computed for num_sampled_clients equal replies, and a round that "
                "closes at its deadline has fewer, of unequal weight: the guarantee would not hold. LocalDpMod on the "
                "clients protects their updates (docs/how-to/flower-strategies.md)"
            )
        if kind.startswith("FedXgb"):
            raise BadSetting(f"aggregate={name}: it collects trees; methods here train vectors of weights")


def _check_configuration(strategy: Any, name: str) -> None:
    """Refuse a strategy whose other methods or arguments would be ignored."""
    for method in OTHER_METHODS:
        home = next(kind for kind in type(strategy).__mro__ if method in vars(kind))
        if not home.__module__.startswith("flwr."):
            raise BadSetting(
                f"aggregate={name}: its own {method} would not be called; move it to a subclass of "
                f"fedbalancer.flower.Strategy (values to send can also go into train_config), or use "
                f"aggregate=FlowerAggregator({name}(...)) if you need its aggregate_train only"
            )
    for argument, (default, replacement) in NO_EFFECT.items():
        value = getattr(strategy, argument, default)
        if value != default:
            raise BadSetting(
                f"{argument} = {value!r} of aggregate={name} would have no effect; here it is {replacement}"
            )
    for argument in METRIC_FUNCTIONS:
        function = getattr(strategy, argument, None)
        if function is not None and not getattr(function, "__module__", "").startswith("flwr."):
            raise BadSetting(f"{argument} of aggregate={name} would have no effect; pass it to Strategy itself")


def _flower_classes(strategy: Any) -> set[str]:
    return {kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")}


@dataclass(frozen=True, eq=False)
class FlowerMemory:
    """The saved attributes of a strategy.

    Args:
        names: Names of the attributes.
        values: One row per attribute.
    """

    names: tuple[str, ...] = ()
    values: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True)
class FlowerAggregator(Aggregator):
    """Aggregates with `aggregate_train` of one of Flower's strategies: FedAdam, FedYogi, Krum and others.

    The strategy sees the model as one array. The attributes in `remembers` are restored before every round and saved
    with the checkpoint. State that a strategy keeps elsewhere is lost when a run resumes.

    Example:
        >>> from flwr.serverapp.strategy import FedAdam
        >>> strategy = Strategy(aggregate=FedAdam(eta=0.1))  # doctest: +SKIP

    Args:
        strategy: The strategy.
        remembers: Attributes of the strategy that are part of its state.
    """

    strategy: Any
    remembers: tuple[str, ...] = ("m_t", "v_t", "momentum_vector")

    def __post_init__(self) -> None:
        check_strategy(self.strategy)

    @property
    def flower_strategy(self) -> Any:
        """The strategy."""
        return self.strategy

    def init(self, setup: Setup) -> FlowerMemory:
        """Return the empty memory."""
        return FlowerMemory()

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, FlowerMemory]:
        """Return the next model and the strategy's memory.

        The model stays as it is if the strategy returns none, or one with values that are not finite.
        """
        memory: FlowerMemory = state.aggregate
        for name, values in zip(memory.names, memory.values, strict=True):
            setattr(self.strategy, name, {WEIGHTS: values.copy()})
        set_current_arrays(self.strategy, _record(state.weights))
        replies = [self._reply(state, report, node) for node, report in enumerate(reports, start=2)]
        arrays, _ = self.strategy.aggregate_train(state.round + 1, replies)
        if arrays is None:
            return state.weights, memory
        weights = arrays[WEIGHTS].numpy().astype(np.float32)
        if not np.isfinite(weights).all():
            return state.weights, memory
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
        attributes = {name: getattr(self.strategy, name, None) for name in self.remembers}
        values = {name: v[WEIGHTS] for name, v in attributes.items() if isinstance(v, dict) and WEIGHTS in v}
        if not values:
            return FlowerMemory()
        return FlowerMemory(tuple(values), np.stack([np.asarray(v, dtype=np.float64) for v in values.values()]))


class UserAggregation(Wrapping, Aggregator):
    """Calls a user's `aggregate_train` with the reports of a round as Flower's messages.

    `super().aggregate_train` in the user's method aggregates with the method's own policy. It gets an untouched reply
    as the original update, and a changed one as the difference between its model and the server's.

    Args:
        inner: The method's own policy.
        layout: Names, shapes and types of the model's arrays.
        aggregate_train: The user's method.
        combine: Combines the clients' metrics.
        nodes: Returns the node of every client.
        metrics: Returns the custom metrics of every client.
    """

    def __init__(
        self,
        inner: Any,
        layout: ModelLayout,
        aggregate_train: AggregateTrain,
        combine: CombineMetrics | None,
        nodes: Callable[[], Mapping[str, int]],
        metrics: Callable[[], Mapping[str, RecordDict]],
    ) -> None:
        self.inner, self._layout, self._aggregate_train = inner, layout, aggregate_train
        self._combine, self._nodes, self._custom_metrics = combine or weighted_mean, nodes, metrics
        self._round: tuple[Setup, ServerState, dict[int, ClientReport]] | None = None
        self._memory: Any = None
        self._own_result: tuple[ArrayRecord, Weights] | None = None
        self.metrics: dict[str, Any] = {}

    def unwrapped(self, state: ServerState) -> ServerState:
        """Return the state unchanged: nothing is added to the policy's memory."""
        return state

    def init(self, setup: Setup) -> Any:
        """Return the policy's memory before the first round."""
        return self.inner.init(setup)

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        """Return the model of the user's method and the policy's memory."""
        nodes = self._nodes()
        self._round = setup, state, {nodes[report.client]: report for report in reports}
        self._memory, self._own_result = state.aggregate, None
        replies = [self._reply(state, report, nodes[report.client]) for report in reports]
        return self._call(state.weights, state.round + 1, replies), self._memory

    def aggregate_nothing(self, state: ServerState) -> Weights:
        """Call the user's method after a round without reports, as Flower does; returns the model."""
        self._round = self._own_result = None
        return self._call(state.weights, state.round, [])

    def aggregate_replies(self, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies with the method's own policy; returns the model and the combined metrics."""
        usable = [reply for reply in replies if reply.has_content()]
        if self._round is None or (not usable and self.model_noise_multiplier is None):
            return None, None
        setup, state, reports = self._round
        weights, self._memory = self.inner.aggregate(setup, state, [self._read(r, state, reports) for r in usable])
        self._own_result = self._layout.record(weights), weights
        custom = self._custom_metrics()
        metrics = [custom[reports[reply.metadata.src_node_id].client] for reply in usable]
        return self._own_result[0], self._combine(metrics, WEIGHT) if metrics else None

    def _call(self, weights: Weights, round_number: int, replies: list[Message]) -> Weights:
        arrays, metrics = self._aggregate_train(round_number, replies)
        self.metrics = dict(metrics or {})
        if arrays is None:
            return weights
        if self._own_result is not None and arrays is self._own_result[0]:
            return self._own_result[1]
        return self._flatten(arrays, "the model that aggregate_train returned")

    def _reply(self, state: ServerState, report: ClientReport, node: int) -> Message:
        custom = dict(self._custom_metrics()[report.client].metric_records[METRICS])
        metrics = custom | {WEIGHT: count_of(report.weight), "train_loss": float(report.summary.loss_mean)}
        arrays = self._layout.record(_client_model(state, report))
        return make_reply(RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics)}), node)

    def _read(self, reply: Message, state: ServerState, reports: dict[int, ClientReport]) -> ClientReport:
        """Return the report of a reply that the user's method may have changed."""
        report = reports.get(reply.metadata.src_node_id)
        if report is None:
            raise BadData(f"aggregate_train was given a reply of node {reply.metadata.src_node_id}, which sent none")
        who = f"the reply of client {report.client!r} that aggregate_train was given"
        if ARRAYS not in reply.content.array_records or METRICS not in reply.content.metric_records:
            raise BadData(f"{who} has no records {ARRAYS!r} and {METRICS!r}")
        weight = reply.content.metric_records[METRICS].get(WEIGHT)
        if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise BadData(f"{who} has {WEIGHT} {weight!r}, which must be a number over 0")
        model = self._flatten(reply.content.array_records[ARRAYS], who)
        before = self._flatten(self._layout.record(_client_model(state, report)), who)
        update = report.update if np.array_equal(model, before) else model - state.weights
        return replace(report, update=update, weight=float(weight))

    def _flatten(self, arrays: ArrayRecord, who: str) -> Weights:
        try:
            weights = self._layout.flat(arrays)
        except InvalidMessage as problem:
            raise BadData(f"{who} does not fit: {problem}") from problem
        if not np.isfinite(weights).all():
            raise BadData(f"{who} has a value that is not a finite number")
        return weights


def describe_aggregator(policy: Any) -> str:
    """Return the name of an aggregation policy; for one of Flower's strategies its class and numeric arguments."""
    if isinstance(policy, Wrapping):
        return f"{type(policy).__name__} of {describe_aggregator(policy.inner)}"
    strategy = policy.flower_strategy
    if strategy is None:
        return type(policy).__name__
    numbers = {name: value for name, value in sorted(vars(strategy).items()) if isinstance(value, float)}
    return f"{type(strategy).__name__}({', '.join(f'{name}={value:g}' for name, value in numbers.items())})"


def count_of(weight: float) -> float:
    """Return a weight as a whole number where possible, as Flower's clients report it."""
    return int(weight) if weight == int(weight) else weight


def _record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({WEIGHTS: Array(np.ascontiguousarray(weights, dtype=np.float32))})


def _client_model(state: ServerState, report: ClientReport) -> Weights:
    return np.asarray(state.weights + report.update, dtype=np.float32)
