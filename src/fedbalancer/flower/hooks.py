"""The methods of Flower's strategies that `Strategy.start` calls in every round. A subclass may override them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import Settings
from fedbalancer.flower.aggregation import UserAggregation
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, FlowerStrategy, Grid, Message, MetricRecord
from fedbalancer.flower.evaluation import CombineMetrics, Evaluators, Target, combine_metrics
from fedbalancer.flower.events import LogEvent
from fedbalancer.flower.grid_engine import GridEngine, Waiting
from fedbalancer.flower.secure import SecureAggregation
from fedbalancer.methods.table import Method


@dataclass(frozen=True)
class ActiveRun:
    """The parts of a run that its strategy's methods use.

    Args:
        engine: The engine.
        aggregation: The adapter around an overridden `aggregate_train`; None without one.
    """

    engine: GridEngine
    aggregation: UserAggregation | None


class RoundHooks(FlowerStrategy):
    """Base of `Strategy`: its settings, and the methods that a subclass may override."""

    method: Method
    settings: Settings
    seed: int
    task: str
    gate: str | None
    run_key: str | None
    min_clients: int
    max_failed_rounds: int | None
    most_samples: int
    most_weight: float
    authenticated_nodes: bool
    secure: SecureAggregation | None
    measure_network: bool
    waiting: Waiting
    log: LogEvent | None
    evaluators: Evaluators
    target: Target | None
    train_metrics_aggr_fn: CombineMetrics | None
    evaluate_metrics_aggr_fn: CombineMetrics | None
    active_run: ActiveRun | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Build the train messages of a round: the model, `config` and the order of each client.

        An override may change `config`, change the configuration of single messages, and leave messages out. Clients
        and deadline are already chosen: a message for another node, or with another model, ends the run.

        Args:
            server_round: Number of the round, from 1.
            arrays: The model.
            config: `train_config` of `start`. Changes persist over rounds.
            grid: Flower's grid.

        Returns:
            One message per client of the round.
        """
        return self._active("configure_train").engine.open_round.messages(arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies with the method's own policy.

        Args:
            server_round: Number of the round.
            replies: The replies that count, already checked, each with a complete model.

        Returns:
            The next model and the clients' combined metrics. What an override returns is used instead.
        """
        aggregation = self._active("aggregate_train").aggregation
        if aggregation is None:
            raise BadSetting("`start` calls aggregate_train only if a subclass overrides it")
        return aggregation.aggregate_replies(replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Build an evaluate message for `fraction_evaluate` of the idle clients.

        Args:
            server_round: Number of the last round; 0 before the first.
            arrays: The model.
            config: `evaluate_config` of `start`. Changes persist over rounds.
            grid: Flower's grid.

        Returns:
            The messages. An override may address any connected node.
        """
        engine = self._active("configure_evaluate").engine
        chosen = self.evaluators.draw(engine.idle_clients(), self.seed, server_round)
        return engine.evaluation_messages(chosen, arrays, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Combine the clients' metrics. Unusable replies are logged.

        Args:
            server_round: Number of the last round.
            replies: All replies, failed ones included.

        Returns:
            The combined metrics; None without a usable reply.
        """
        engine = self._active("aggregate_evaluate").engine
        names = {node: client for client, node in engine.nodes.node_of.items()}

        def fault(node: int, why: str) -> None:
            engine.log_event("evaluation failed", client=names.get(node, f"node {node}"), round=server_round, why=why)

        metrics = combine_metrics(replies, fault, engine.metric_names, self.evaluate_metrics_aggr_fn)
        return MetricRecord(metrics) if metrics else None

    def _active(self, name: str) -> ActiveRun:
        if self.active_run is None:
            raise BadSetting(
                f"{name} of {type(self).__name__} is called by its own start, in a round: it cannot run in a loop of "
                "Flower's, nor inside one of Flower's strategies that wrap another"
            )
        return self.active_run


def overrides(strategy: RoundHooks, name: str) -> bool:
    """Whether a subclass, or a patched instance, overrides a method of `RoundHooks`."""
    ours: Any = getattr(RoundHooks, name)
    return getattr(getattr(strategy, name), "__func__", None) is not ours
