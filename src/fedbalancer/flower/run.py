"""One start of a strategy: from the first greeting, or from the last checkpoint, to the last round."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.files import readable
from fedbalancer.core.types import Evaluation, Ledger, RoundResult, ServerState, Weights
from fedbalancer.flower.aggregation import OwnAggregation, strategy_config
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, MetricRecord, Result, config_from_text, kept
from fedbalancer.flower.evaluation import asked, missing_metrics, to_evaluation, weighted_mean
from fedbalancer.flower.failures import FailedRounds
from fedbalancer.flower.grid_engine import GridEngine
from fedbalancer.flower.hooks import overrides
from fedbalancer.flower.ledger import make_ledger, with_network_times
from fedbalancer.flower.messages import WEIGHT, ModelLayout
from fedbalancer.flower.recorder import RunRecorder, describe_aggregator, make_manifest
from fedbalancer.methods.table import setup_of
from fedbalancer.server.loop import rounds
from fedbalancer.server.server import Server
from fedbalancer.store.privacy import describe_privacy, privacy_rows

if TYPE_CHECKING:
    from fedbalancer.flower.strategy import Strategy

METRICS_OF_ROUNDS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""What Flower's `Result` calls the metrics of the rounds."""


def figures_of(result: RoundResult) -> dict[str, Any]:
    """What a round was like."""
    order, reports = result.plan.order, result.reports
    counts = sum(report.summary.loss_count for report in reports)
    loss = sum(report.summary.loss_sum for report in reports) / counts if counts else math.nan
    joined = sum(report.staleness > 0 for report in reports)
    late = {} if result.plan.late == "lost" else {"joined": joined, "under_way": len(result.under_way)}
    return late | {
        "deadline_s": float(order.deadline_s), "seconds": result.seconds, "selected": len(result.plan.cohort),
        "completed": len(reports), "loss_threshold": order.loss_threshold, "train_loss": loss,
        "num-examples": int(sum(report.summary.trained for report in reports)),
    }  # fmt: skip


def metrics_of_round(result: Result, number: int) -> dict[str, Any]:
    """The metrics of one round, for the journal."""
    found = {kind: getattr(result, kind).get(number) for kind in METRICS_OF_ROUNDS}
    return {"round": number, **{kind: dict(metrics) for kind, metrics in found.items() if metrics is not None}}


def restore_metrics(result: Result, saved: Iterable[Mapping[str, Any]]) -> None:
    """Put the metrics of earlier rounds, as `metrics_of_round` gave them, into a result."""
    for notes in saved:
        for kind in METRICS_OF_ROUNDS:
            if kind in notes:
                getattr(result, kind)[int(notes["round"])] = MetricRecord(dict(notes[kind]))


CONFIGURATIONS = ("configure_train", "configure_evaluate")
"""Whose configuration is kept with the checkpoint: as in Flower, what they change of it stays changed."""
_log = logging.getLogger("flwr.fedbalancer")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Run:
    """One start of a strategy."""

    def __init__(
        self, strategy: Strategy, grid: Grid, arrays: ArrayRecord, num_rounds: int, timeout: float,
        train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None, evaluate_fn: EvaluateFn | None,
    ) -> None:  # fmt: skip
        self.strategy, self.num_rounds, self.train_config = strategy, num_rounds, dict(train_config or {})
        self.layout = ModelLayout.of(arrays)
        self.key = strategy.run_key if strategy.run_key is not None else f"run-{grid.run.run_id}"
        self.weights = self.layout.flat(arrays)
        self.result = Result(arrays=arrays)
        strategy.run = self
        self.aggregation = OwnAggregation(self) if overrides(strategy, "aggregate_train") else None
        self.method = (
            strategy.method if self.aggregation is None else strategy.method.with_policies(aggregate=self.aggregation)
        )
        self.evaluate_fn, self.evaluate_config = evaluate_fn, ConfigRecord(dict(evaluate_config or {}))
        self._told: set[str] = set()
        self.state: ServerState
        self.record: RunRecorder
        self.saved: Weights | None = None  # the model of the last checkpoint
        self.engine = GridEngine(
            grid,
            self.method,
            self.layout,
            strategy.settings,
            run_key=self.key,
            waiting=replace(strategy.waiting, timeout_s=timeout),
            most_samples=strategy.most_samples,
            authenticated_nodes=strategy.authenticated_nodes,
            train_config={**strategy_config(strategy.method.aggregate), **self.train_config},
            evaluate_config=evaluate_config,
            configure_train=strategy.configure_train,
            log=self._tell,
        )

    def manifest(self) -> dict[str, Any]:
        s = self.strategy
        sent = {name: value.hex() if isinstance(value, bytes) else value for name, value in self.train_config.items()}
        known = make_manifest(
            s.task, s.method.name, s.seed, s.settings, self.num_rounds, train_config=readable(sent),
            aggregate=describe_aggregator(s.method.aggregate),
        )  # fmt: skip
        return known | {"privacy": describe_privacy(self.method, s.settings)}

    def run_rounds(self, record: RunRecorder) -> None:
        """All rounds from the beginning or from the last checkpoint."""
        self.record, self.round = record, 0
        server, self.state = self._begin()
        self.failed = self.engine.missed_rounds > 0
        self.engine.wait_for_clients(min(self.strategy.min_clients, max(len(self.state.ledger.clients), 1)))
        spending, fruitless = self.engine.spending, FailedRounds(self.strategy.max_failed_rounds)
        while self.state.round < self.num_rounds:
            if spending is not None and spending.is_over(self.state.ledger.clients):
                self.engine.log_event("every client has spent its epsilon_budget", round=self.state.round)
                break
            _log.info("")
            _log.info("[ROUND %d/%d]", self.state.round + 1, self.num_rounds)
            server = self._ready(server)
            before = self.state
            # One round at a time: between two rounds the ledger may grow, which the loop knows nothing of.
            self.state, result = next(rounds(server, self.engine, before, lambda state: False))
            self.round = self.state.round
            if self.aggregation is not None and not result.reports and self.aggregation.model_noise_multiplier is None:
                self.state = replace(self.state, weights=self.aggregation.of_nobody(self.state))
            server = self._learnt(server, result)
            self._record_round(before, result, server.setup.ledger)
            fruitless.check(result)

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
                restore_metrics(self.result, self.record.folder.notes)
                self._take_up(remembered)
                self.round, self.saved = state.round, self.model(state)
                self._publish(state)
                for change in self.record.changes:
                    self.engine.log_event("setting changed", **asdict(change))
                    if change.setting == "batch_size":
                        ledger = self.engine.speeds.rescale(state.ledger, change.now / change.before)
                        state = replace(state, ledger=ledger)
                self.record.note_changes(state.round)
                self.engine.log_event("resumed", round=state.round, clients=len(state.ledger.clients))
                return server, state
        if self.record.resumed:
            self.record.folder.restore(_no_state(self.weights))
            self.record.note_changes(0)
        self.engine.wait_for_clients(self.strategy.min_clients)
        greetings = [greeting for _, greeting in sorted(self.engine.nodes.greetings.items())]
        self.engine.speeds.add_clients(greetings)
        server = self._server(self.engine.update_ledger(make_ledger(greetings), self.strategy.measure_network))
        state = server.init(self.weights)
        if (evaluation := self._evaluation(self.model(state))) is not None:
            self.record.start(evaluation, metrics_of_round(self.result, 0))
        return server, state

    def _ready(self, server: Server) -> Server:
        """Before a round: who is there, and what there is to learn from those who answered the last one too late."""
        engine, assumed = self.engine, set(self.engine.speeds.assumed)
        self.state = replace(self.state, suspensions=engine.suspended(self.state.suspensions, self.state.round))
        if self.strategy.measure_network and engine.ledger is not None:
            engine.wait_for_free_clients()
        self.state = self._welcomed(self.state)
        carried = engine.transport.take_first_orders() if self.strategy.measure_network else set()
        if self.failed and self.strategy.measure_network:
            return self._expecting_more()
        return self._expecting_otherwise(server, assumed - engine.speeds.assumed, carried)

    def _learnt(self, server: Server, result: RoundResult) -> Server:
        """After a round: how fast those are who reported, and whether nobody did."""
        engine, measures = self.engine, self.strategy.measure_network
        assumed = set(engine.speeds.assumed)
        for missing in result.missing:
            if (until := self.state.suspensions.until.get(missing.client, 0)) > self.state.round and missing.problem:
                engine.log_event(
                    "sits out", client=missing.client, round=self.state.round, until=until, why=missing.problem
                )
        seen = result.in_time if result.plan.late == "joins" else result  # what joined did not make this deadline
        self.failed = seen.ran_out_of_time
        if self.failed or seen.reports:
            engine.missed_rounds = engine.missed_rounds + 1 if self.failed else max(engine.missed_rounds - 1, 0)
        if measures:
            for client, until in ({} if engine.late_counts else engine.pauses.update(result)).items():
                engine.log_event(
                    "paused", client=client, round=self.state.round, until=until, why="misses the deadlines"
                )
            self.state = replace(self.state, ledger=engine.speeds.update_speeds(self.state.ledger, result.reports))
        elif self.failed and not self.state.ledger.explored.any():
            return self._expecting_more()
        return self._expecting_otherwise(server, assumed - engine.speeds.assumed)

    def _expecting_more(self) -> Server:
        """After a round that nobody made, T and all that hangs on it are worked out again from what was seen so far,
        with the guard's seconds for every such round: a deadline that is too short for this network and these devices
        would never be met."""
        ledger = self.engine.update_ledger(self.state.ledger, self.strategy.measure_network)
        guard_s = 0.0 if self.strategy.measure_network else self.engine.missed_rounds * self.strategy.settings.guard_s
        renewed = self._server(replace(ledger, network_s=ledger.network_s + guard_s))
        fresh = renewed.init(self.state.weights)
        self.state = replace(self.state, ledger=ledger, deadline=fresh.deadline)
        if not ledger.explored.any():
            self.state = replace(self.state, clients=fresh.clients)
        return renewed

    def _expecting_otherwise(self, server: Server, measured: set[str], carried: Iterable[str] = ()) -> Server:
        """Work T out again where it depended on assumptions: with the speeds of the clients that were `measured`, and
        the transport of those to which a model was `carried` for the first time."""
        first, ledger = server.setup.ledger, self.state.ledger
        rows = first.rows(tuple(sorted(measured & set(first.clients))))
        network_s = {client: self.engine.transport.expected_s(client) for client in carried if client in first.position}
        if not len(rows) and not network_s:
            return server
        total_s, count = first.batch_s_sum.copy(), np.array(first.batch_s_count)
        total_s[rows], count[rows] = ledger.batch_s_sum[rows], ledger.batch_s_count[rows]
        renewed = self._server(replace(with_network_times(first, network_s), batch_s_sum=total_s, batch_s_count=count))
        deadline = renewed.policies.deadline.retime(renewed.setup, self.state.deadline)
        self.state = replace(self.state, deadline=deadline)
        return renewed

    def _server(self, ledger: Ledger) -> Server:
        strategy = self.strategy
        setup = setup_of(strategy.method, ledger, strategy.settings, strategy.seed)
        return Server(self.method.server, replace(setup, most_weight=strategy.most_weight))

    def _welcomed(self, state: ServerState) -> ServerState:
        return replace(state, ledger=self.engine.update_ledger(state.ledger, self.strategy.measure_network))

    def _record_round(self, before: ServerState, result: RoundResult, first: Ledger) -> None:
        """Evaluate, record and save a round."""
        due = self.state.round % self.strategy.settings.eval_every == 0 or self.state.round == self.num_rounds
        evaluation = self._evaluation(self.model(self.state)) if due else None
        self._publish(self.state)
        self.result.train_metrics_clientapp[self.state.round] = self._train_metrics(result)
        self.record.round(before, self.state, result, evaluation, metrics_of_round(self.result, self.state.round))
        self.record.checkpoint(self.state, first, self.engine.snapshot() | self._kept())
        self.saved = self.model(self.state)
        if (spending := self.engine.spending) is not None:
            rows = privacy_rows(self.method, self.strategy.settings, self.state.ledger.clients, spending.releases)
            self.record.folder.record_privacy(rows)

    def _kept(self) -> dict[str, str]:
        """The configurations, where a user's methods may have changed them."""
        changing = {CONFIGURATIONS[0]: self.engine.train_config, CONFIGURATIONS[1]: self.evaluate_config}
        return {name: kept(config) for name, config in changing.items() if overrides(self.strategy, name)}

    def _take_up(self, remembered: Mapping[str, Any]) -> None:
        if CONFIGURATIONS[0] in remembered:
            self.engine.train_config = config_from_text(remembered[CONFIGURATIONS[0]])
        if CONFIGURATIONS[1] in remembered:
            self.evaluate_config = config_from_text(remembered[CONFIGURATIONS[1]])

    def _train_metrics(self, result: RoundResult) -> MetricRecord:
        """What a round was like, and the clients' own metrics as one."""
        own = list(self.engine.custom_metrics.values())
        if self.aggregation is not None:
            return MetricRecord({**self.aggregation.metrics, **figures_of(result)})
        found = (self.strategy.train_metrics_aggr_fn or weighted_mean)(own, WEIGHT) if own else {}
        return MetricRecord({**dict(found), **figures_of(result)})

    def model(self, state: ServerState) -> Weights:
        """The model to evaluate and to hand out."""
        return self.strategy.method.server.model_average.model(state)

    def _publish(self, state: ServerState) -> None:
        self.result.arrays = self.layout.record(self.model(state))

    def _evaluation(self, weights: Weights) -> Evaluation | None:
        """The model on the server's data, on the clients', or on both; our tables have the server's where there are
        any."""
        server = None
        if self.evaluate_fn is not None:
            server = self.evaluate_fn(self.round, self.layout.record(weights))
            if server is not None:
                self.result.evaluate_metrics_serverapp[self.round] = server
        clients: Mapping[str, Any] = {}
        if self.strategy.evaluators.fraction:
            clients = self._asked(self.layout.record(weights)) or {}
        if server is None and not self.strategy.evaluators.fraction:
            return None
        for place, found in (("server", server or {}), ("clients", clients)):
            if found:
                self.engine.log_event("evaluated", round=self.round, on=place, **self._numbers(found))
        return to_evaluation(clients if server is None else server)

    def _asked(self, arrays: ArrayRecord) -> MetricRecord | None:
        """The clients' metrics as one, by the strategy's own methods."""
        strategy, engine = self.strategy, self.engine
        self.evaluate_config["server-round"] = self.round
        messages = strategy.configure_evaluate(self.round, arrays, self.evaluate_config, engine.grid)
        found = strategy.aggregate_evaluate(self.round, asked(engine, messages, self.round))
        if found is not None:
            self.result.evaluate_metrics_clientapp[self.round] = found
        return found

    def _numbers(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Accuracy and loss for the log, and the others by their names. What is in neither is said once."""
        evaluation, lacking = to_evaluation(found), set(missing_metrics(found)) - self._told
        self._told |= lacking
        for name in sorted(lacking):
            self.engine.log_event("not among the metrics", metric=name, found=", ".join(found) or "nothing",
                            why=f"tables and reports have none; call it {name}")  # fmt: skip
        others = {name: value for name, value in found.items() if name not in ("accuracy", "loss", WEIGHT)}
        shown = {name: value for name, value in others.items() if isinstance(value, int | float)}
        return {"accuracy": evaluation.accuracy, "loss": evaluation.loss, "others": shown}

    def _tell(self, event: str, **fields: Any) -> None:
        if hasattr(self, "record"):
            self.record.folder.log(event, **fields)
        if self.strategy.log is not None:
            self.strategy.log(event, **fields)


def _no_state(weights: Weights) -> ServerState:
    """Enough of a state to find that nothing was saved yet."""
    return ServerState(0, 0.0, weights, Ledger.start((), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 1))))
