"""The methods of a round that Flower's strategies have. Here `start` runs the rounds, and calls them in each: a
subclass may change what goes out, what is made of what comes back, and both for evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, FlowerStrategy, Grid, Message, MetricRecord
from fedbalancer.flower.evaluation import CombineMetrics, Evaluators, combine_metrics, questions

if TYPE_CHECKING:
    from fedbalancer.flower.run import Run

HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


class RoundHooks(FlowerStrategy):
    """One of Flower's strategies whose methods belong to the rounds of a `Run`."""

    seed: int
    evaluators: Evaluators
    train_metrics_aggr_fn: CombineMetrics | None
    evaluate_metrics_aggr_fn: CombineMetrics | None
    run: Run | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every client of the round with the model, `config` and its order.

        A subclass may change `config` before, or the configuration of single messages, and leave messages out. The
        clients were chosen and the deadline set before: a message for anybody else, or with another model, is refused.
        """
        return self._running("configure_train").engine.open_round.messages(arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model that the method's own aggregation makes of these replies, and the clients' own metrics as one.

        `replies` are those that count in the round, checked, each with a whole model. What a subclass returns is the
        next model and, with the figures of the round, its metrics.
        """
        run = self._running("aggregate_train")
        if run.aggregation is None:
            raise BadSetting("aggregate_train is called by `start` only where a subclass has one of its own")
        return run.aggregation.of(replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every client that evaluates: `fraction_evaluate` of those that are free."""
        engine = self._running("configure_evaluate").engine
        chosen = self.evaluators.drawn(engine.idle(), self.seed, server_round)
        return questions(engine, chosen, arrays, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics as one; who sent what cannot be used is named in the log."""
        engine = self._running("aggregate_evaluate").engine
        names = {node: client for client, node in engine.nodes.node_of.items()}

        def fault(node: int, why: str) -> None:
            engine.log_event("evaluation failed", client=names.get(node, f"node {node}"), round=server_round, why=why)

        found = combine_metrics(replies, fault, engine.metric_names, self.evaluate_metrics_aggr_fn)
        return MetricRecord(found) if found else None

    def _running(self, name: str) -> Run:
        if self.run is None:
            raise BadSetting(
                f"{name} of {type(self).__name__} is called by its own start, in a round: it cannot run in a loop of "
                "Flower's, nor inside one of Flower's strategies that wrap another"
            )
        return self.run


def overrides(strategy: RoundHooks, name: str) -> bool:
    """Whether a subclass, or somebody else, has put a method of his own in place of ours."""
    ours: Any = getattr(RoundHooks, name)
    return getattr(getattr(strategy, name), "__func__", None) is not ours
