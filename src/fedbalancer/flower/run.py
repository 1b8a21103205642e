"""One start of a strategy: from the first greeting, or from the last checkpoint, to the last round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, MetricRecord, Result
from fedbalancer.flower.grid_engine import GridEngine
from fedbalancer.flower.layout import ModelLayout
from fedbalancer.flower.ledger import ledger_of
from fedbalancer.flower.recorder import RunRecorder, manifest_of, metric
from fedbalancer.loop import rounds
from fedbalancer.methods import setup_of
from fedbalancer.server.server import Server
from fedbalancer.store.privacy import described_privacy, privacy_rows
from fedbalancer.types import Evaluation, Ledger, RoundResult, ServerState, Weights

if TYPE_CHECKING:
    from fedbalancer.flower.strategy import Strategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Run:
    """One start of a strategy."""

    def __init__(
        self, strategy: Strategy, grid: Grid, arrays: ArrayRecord, num_rounds: int, timeout: float,
        train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None, evaluate_fn: EvaluateFn | None,
    ) -> None:  # fmt: skip
        self.strategy, self.num_rounds = strategy, num_rounds
        self.layout = ModelLayout.of(arrays)
        self.key = strategy.run_key if strategy.run_key is not None else f"run-{grid.run.run_id}"
        self.weights = self.layout.flat(arrays)
        self.result = Result(arrays=arrays)
        self.evaluate_fn = evaluate_fn
        self.state: ServerState
        self.record: RunRecorder
        self.engine = GridEngine(
            grid,
            strategy.method,
            self.layout,
            strategy.settings,
            run_key=self.key,
            waiting=replace(strategy.waiting, timeout_s=timeout),
            most_samples=strategy.most_samples,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate=self._asked if evaluate_fn is not None else None,
            log=self._tell,
        )

    def manifest(self) -> dict[str, Any]:
        s = self.strategy
        known = manifest_of(s.task, s.method.name, s.seed, s.settings, self.num_rounds)
        return known | {"privacy": described_privacy(s.method, s.settings)}

    def go(self, record: RunRecorder) -> None:
        """All rounds from the beginning or from the last checkpoint."""
        self.record, self.round, self.failed = record, 0, 0
        server, self.state = self._begin()
        self.engine.gather(min(self.strategy.min_clients, max(len(self.state.ledger.clients), 1)))
        spending = self.engine.spending
        while self.state.round < self.num_rounds:
            if spending is not None and spending.is_over(self.state.ledger.clients):
                self.engine.say("every client has spent its epsilon_budget", round=self.state.round)
                break
            before = self.state = self._welcomed(self.state)
            # One round at a time: between two rounds the ledger may grow, which the loop knows nothing of.
            self.state, result = next(rounds(server, self.engine, before, lambda state: False))
            self.round = self.state.round
            if not self.state.ledger.explored.any():
                server = self._expecting_more(server)
            self._keep(before, result, server.setup.ledger)

    def _begin(self) -> tuple[Server, ServerState]:
        """The server and the state to go on from."""
        ledgers = self.record.ledgers()
        if ledgers is not None:
            first, last = ledgers
            server = self._server(first)
            restored = self.record.restore(replace(server.init(self.weights), ledger=last))
            if restored is not None:
                state, remembered = restored
                self.engine.restore(remembered)
                self.round = state.round
                self._publish(state)
                self.engine.say("resumed", round=state.round, clients=len(state.ledger.clients))
                return server, state
        if self.record.resumed:
            self.record.folder.restore(_no_state(self.weights))
        self.engine.gather(self.strategy.min_clients)
        greetings = [greeting for _, greeting in sorted(self.engine.nodes.greetings.items())]
        server = self._server(self.engine.welcome(ledger_of(greetings), self.strategy.measure_network))
        state = server.init(self.weights)
        if (evaluation := self._evaluation(self.model(state))) is not None:
            self.record.start(evaluation)
        return server, state

    def _expecting_more(self, server: Server) -> Server:
        """Until somebody has made it in time, T and all that hangs on it are worked out again from the transport seen
        so far, with the guard's seconds for every round that failed: a first deadline that is too short for this
        network and these devices would never be met."""
        ledger = self.engine.welcome(self.state.ledger, self.strategy.measure_network)
        self.failed += 1
        guard_s = self.failed * self.strategy.settings.guard_s
        renewed = self._server(replace(ledger, network_s=ledger.network_s + guard_s))
        fresh = renewed.init(self.state.weights)
        self.state = replace(self.state, ledger=ledger, clients=fresh.clients, deadline=fresh.deadline)
        return renewed

    def _server(self, ledger: Ledger) -> Server:
        strategy = self.strategy
        return Server(strategy.method.server, setup_of(strategy.method, ledger, strategy.settings, strategy.seed))

    def _welcomed(self, state: ServerState) -> ServerState:
        return replace(state, ledger=self.engine.welcome(state.ledger, self.strategy.measure_network))

    def _keep(self, before: ServerState, result: RoundResult, first: Ledger) -> None:
        """Evaluate, record and save a round."""
        due = self.state.round % self.strategy.settings.eval_every == 0 or self.state.round == self.num_rounds
        evaluation = self._evaluation(self.model(self.state)) if due else None
        self._publish(self.state)
        self.result.train_metrics_clientapp[self.state.round] = _metrics(result)
        self.record.round(before, self.state, result, evaluation)
        self.record.checkpoint(self.state, first, self.engine.snapshot())
        if (spending := self.engine.spending) is not None:
            method, settings = self.strategy.method, self.strategy.settings
            rows = privacy_rows(method, settings, self.state.ledger.clients, spending.releases)
            self.record.folder.record_privacy(rows)

    def model(self, state: ServerState) -> Weights:
        """The model to evaluate and to hand out."""
        return self.strategy.method.server.deliver.model(state)

    def _publish(self, state: ServerState) -> None:
        self.result.arrays = self.layout.record(self.model(state))

    def _evaluation(self, weights: Weights) -> Evaluation | None:
        if self.evaluate_fn is None and not self.strategy.federated_evaluate:
            return None
        evaluation = self.engine.evaluate(weights)
        if self.evaluate_fn is None:
            found: dict[str, Any] = {"accuracy": evaluation.accuracy, "loss": evaluation.loss}
            self.result.evaluate_metrics_clientapp[self.round] = MetricRecord(found)
        self.engine.say("evaluated", round=self.round, accuracy=evaluation.accuracy, loss=evaluation.loss)
        return evaluation

    def _asked(self, weights: Weights) -> Evaluation:
        """The user's own evaluation on the server."""
        if self.evaluate_fn is None:
            return Evaluation(math.nan, math.nan, 0)
        found = self.evaluate_fn(self.round, self.layout.record(weights))
        if found is not None:
            self.result.evaluate_metrics_serverapp[self.round] = found
        return Evaluation(metric(found, "accuracy", "acc"), metric(found, "loss"), 0)

    def _tell(self, event: str, **fields: Any) -> None:
        if hasattr(self, "record"):
            self.record.folder.log(event, **fields)
        if self.strategy.log is not None:
            self.strategy.log(event, **fields)


def _metrics(result: RoundResult) -> MetricRecord:
    order, reports = result.plan.order, result.reports
    counts = sum(report.summary.loss_count for report in reports)
    loss = sum(report.summary.loss_sum for report in reports) / counts if counts else math.nan
    found: dict[str, Any] = {
        "deadline_s": float(order.deadline_s), "seconds": result.seconds, "selected": len(result.plan.cohort),
        "completed": len(reports), "loss_threshold": order.loss_threshold, "train_loss": loss,
        "num-examples": int(sum(report.summary.trained for report in reports)),
    }  # fmt: skip
    return MetricRecord(found)


def _no_state(weights: Weights) -> ServerState:
    """Enough of a state to find that nothing was saved yet."""
    return ServerState(0, 0.0, weights, Ledger.start((), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 1))))
