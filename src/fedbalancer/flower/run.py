"""One start of a strategy: from the first greeting, or the last checkpoint, to the last round; and its server."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from fedbalancer.core.files import readable
from fedbalancer.core.types import Evaluation, IndexArray, Ledger, RoundPlan, RoundResult, ServerState, Setup, Weights
from fedbalancer.flower.aggregation import UserAggregation, describe_aggregator, strategy_config
from fedbalancer.flower.compat import (
    ArrayRecord,
    ConfigRecord,
    Grid,
    MetricRecord,
    Result,
    config_from_text,
    config_to_text,
)
from fedbalancer.flower.evaluation import missing_metrics, spread_over_clients, to_evaluation, weighted_mean
from fedbalancer.flower.failures import FailedRounds
from fedbalancer.flower.grid_engine import GUARD_S, GridEngine
from fedbalancer.flower.hooks import ActiveRun, RoundHooks, overrides
from fedbalancer.flower.ledger import make_ledger, with_network_times
from fedbalancer.flower.messages import WEIGHT
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.flower.recorder import RunRecorder, make_manifest
from fedbalancer.methods.table import setup_of
from fedbalancer.server.loop import rounds
from fedbalancer.server.report_check import CohortFaults
from fedbalancer.server.server import Server, ServerPolicies
from fedbalancer.store.privacy import describe_privacy, privacy_rows
from fedbalancer.store.rows import ClientSpread


class GrowingServer:
    """A server whose clients join while it runs, and whose round length T follows measurements.

    A simulated server knows all clients and their speed from the start. On Flower, clients join between rounds, and
    their speed and transport times are assumptions until they are measured. `prepare` and `observe` update the ledger
    and, where T depends on it, replace the `Server` that plans the rounds.

    Args:
        policies: The method's server policies.
        make_setup: Builds the setup of a server, including T, from a ledger.
        ledger: The ledger that T is computed from.
        engine: The engine that measures the clients.
        measure_network: Whether measurements replace assumptions.
        aggregation: The user's own `aggregate_train`, if there is one.
    """

    def __init__(
        self,
        policies: ServerPolicies,
        make_setup: Callable[[Ledger], Setup],
        ledger: Ledger,
        engine: GridEngine,
        *,
        measure_network: bool,
        aggregation: UserAggregation | None = None,
    ) -> None:
        self._policies, self._make_setup, self._engine = policies, make_setup, engine
        self._measures, self._aggregation = measure_network, aggregation
        self._server = self._build(ledger)
        self.nobody_finished = False
        self.planned_from: ServerState  # the state of the last `prepare`

    def _build(self, ledger: Ledger) -> Server:
        return Server(self._policies, self._make_setup(ledger))

    @property
    def setup(self) -> Setup:
        """The setup of the current server."""
        return self._server.setup

    def init(self, weights: Weights) -> ServerState:
        """Return the state before the first round."""
        return self._server.init(weights)

    def prepare(self, state: ServerState) -> ServerState:
        """Wait for free clients, and update suspensions, ledger and T before a round is planned."""
        engine, assumed = self._engine, set(self._engine.speeds.assumed)
        state = replace(state, suspensions=engine.update_suspensions(state.suspensions, state.round))
        if self._measures and engine.has_ledger:
            engine.wait_for_free_clients()
        state = replace(state, ledger=engine.update_ledger(state.ledger, self._measures))
        first_orders = engine.transport.take_first_orders() if self._measures else set()
        if self.nobody_finished and self._measures:
            state = self._lengthen(state)
        else:
            state = self._correct(state, assumed - engine.speeds.assumed, first_orders)
        self.planned_from = state = self._wait_for_eligible(state)
        return state

    def _wait_for_eligible(self, state: ServerState) -> ServerState:
        """Wait until the client selector may select somebody. The run's clock includes the wait."""
        engine, began_s = self._engine, state.clock_s
        while not engine.is_any_eligible(partial(self._any_eligible, state), state.clock_s - began_s):
            clock_s = state.clock_s + engine.wait_for_eligible(state.clock_s - began_s)
            state = replace(state, clock_s=clock_s, ledger=engine.update_ledger(state.ledger, self._measures))
        return state

    def _any_eligible(self, state: ServerState, rows: IndexArray) -> bool:
        return len(self._policies.clients.eligible(self.setup, state, rows)) > 0

    def plan(self, state: ServerState, available: IndexArray) -> RoundPlan:
        """Plan the next round."""
        return self._server.plan(state, available)

    def fold(self, state: ServerState, plan: RoundPlan) -> None:
        """Return None: replies arrive in any order and are kept until the round closes."""

    def cohort_faults(self, state: ServerState) -> CohortFaults:
        """Return the check that compares the reports of a round with each other."""
        return self._server.cohort_faults(state)

    def observe(self, state: ServerState, result: RoundResult) -> ServerState:
        """Return the state after a round, with the speeds that its reports measured."""
        after = self._server.observe(state, result)
        aggregation = self._aggregation
        if aggregation is not None and not result.reports and aggregation.model_noise_multiplier is None:
            after = replace(after, weights=aggregation.aggregate_nothing(after))
        return self._learn(after, result)

    def _learn(self, state: ServerState, result: RoundResult) -> ServerState:
        engine, assumed = self._engine, set(self._engine.speeds.assumed)
        for missing in result.missing:
            until = state.suspensions.until.get(missing.client, 0)
            if until > state.round and missing.problem:
                engine.log_event("sits out", client=missing.client, round=state.round, until=until, why=missing.problem)
        in_time = result.in_time if result.plan.late == "joins" else result  # late reports missed their deadline
        self.nobody_finished = in_time.ran_out_of_time
        if self.nobody_finished:
            engine.missed_rounds += 1
        elif in_time.reports:
            engine.missed_rounds = max(engine.missed_rounds - 1, 0)
        if self._measures:
            for client, until in ({} if engine.late_counts else engine.pauses.update(result)).items():
                engine.log_event("paused", client=client, round=state.round, until=until, why="misses the deadlines")
            state = replace(state, ledger=engine.speeds.update_speeds(state.ledger, result.reports))
        elif self.nobody_finished and not state.ledger.explored.any():
            return self._lengthen(state)
        return self._correct(state, assumed - engine.speeds.assumed)

    def _lengthen(self, state: ServerState) -> ServerState:
        """Recompute T after a round that nobody finished, with `GUARD_S` seconds more for each such round.

        Otherwise a deadline that is too short for this network and these devices would never be met.
        """
        engine = self._engine
        ledger = engine.update_ledger(state.ledger, self._measures)
        guard_s = 0.0 if self._measures else engine.missed_rounds * GUARD_S
        self._server = self._build(replace(ledger, network_s=ledger.network_s + guard_s))
        fresh = self._server.init(state.weights)
        state = replace(state, ledger=ledger, deadline=fresh.deadline)
        return state if ledger.explored.any() else replace(state, clients=fresh.clients)

    def _correct(self, state: ServerState, measured: set[str], first_orders: Iterable[str] = ()) -> ServerState:
        """Recompute T where it depended on assumptions.

        Args:
            state: The current state.
            measured: Clients whose speed was measured for the first time.
            first_orders: Clients to which a model was sent for the first time.
        """
        first, ledger = self.setup.ledger, state.ledger
        rows = first.rows(tuple(sorted(measured & set(first.clients))))
        transport = self._engine.transport
        network_s = {client: transport.expected_s(client) for client in first_orders if client in first.position}
        if not len(rows) and not network_s:
            return state
        total_s, count = first.batch_s_sum.copy(), np.array(first.batch_s_count)
        total_s[rows], count[rows] = ledger.batch_s_sum[rows], ledger.batch_s_count[rows]
        with_network = with_network_times(first, network_s)
        self._server = self._build(replace(with_network, batch_s_sum=total_s, batch_s_count=count))
        return replace(state, deadline=self._policies.deadline.retime(self.setup, state.deadline))


TRAIN_HOOK, EVALUATE_HOOK = "configure_train", "configure_evaluate"
"""Hooks whose configuration is saved with the checkpoint: as in Flower, their changes persist."""
METRICS_OF_ROUNDS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""Attributes of Flower's `Result` with the metrics of each round."""
_log = logging.getLogger("flwr.fedbalancer")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's `evaluate_fn`: (round, model) -> metrics."""


class Run:
    """One start of a strategy.

    Args:
        strategy: The strategy.
        grid: Flower's grid.
        arrays: The initial model.
        num_rounds: Number of rounds.
        timeout: Longest duration of a round without a deadline, in seconds.
        train_config: Configuration that is sent with every order.
        evaluate_config: Configuration that is sent with every evaluation.
        evaluate_fn: Evaluates a model on the server.
    """

    def __init__(
        self, strategy: RoundHooks, grid: Grid, arrays: ArrayRecord, num_rounds: int, timeout: float,
        train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None, evaluate_fn: EvaluateFn | None,
    ) -> None:  # fmt: skip
        self.strategy, self.num_rounds, self.train_config = strategy, num_rounds, dict(train_config or {})
        self.layout = ModelLayout.of(arrays)
        self.key = strategy.run_key if strategy.run_key is not None else f"run-{grid.run.run_id}"
        self.weights = self.layout.flat(arrays)
        self.result = Result(arrays=arrays)
        self.aggregation = self._user_aggregation() if overrides(strategy, "aggregate_train") else None
        self.method = (
            strategy.method if self.aggregation is None else strategy.method.with_policies(aggregate=self.aggregation)
        )
        self.evaluate_fn, self.evaluate_config = evaluate_fn, ConfigRecord(dict(evaluate_config or {}))
        self._logged_as_missing: set[str] = set()
        self.spread: ClientSpread | None = None
        self.why_ended: str | None = None
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
            secure=strategy.secure,
            log=self._log_event,
        )
        strategy.active_run = ActiveRun(self.engine, self.aggregation)

    def _user_aggregation(self) -> UserAggregation:
        strategy = self.strategy
        return UserAggregation(
            strategy.method.server.aggregate, self.layout, strategy.aggregate_train, strategy.train_metrics_aggr_fn,
            nodes=lambda: self.engine.nodes.node_of, metrics=lambda: self.engine.custom_metrics,
        )  # fmt: skip

    def manifest(self) -> dict[str, Any]:
        """Return the content of `manifest.json`."""
        s = self.strategy
        sent = {name: value.hex() if isinstance(value, bytes) else value for name, value in self.train_config.items()}
        content = make_manifest(
            s.task, s.method, s.seed, s.settings, self.num_rounds, train_config=readable(sent),
            aggregate=describe_aggregator(s.method.aggregate), gate=s.gate,
        )  # fmt: skip
        return content | {"privacy": describe_privacy(self.method, s.settings)}

    def run_rounds(self, record: RunRecorder) -> None:
        """Run all rounds, from the first or from the last checkpoint.

        Args:
            record: Writes the run folder.
        """
        self.record = record
        if self.engine.late_counts:
            self.engine.late.keep = record.late.save
        server, self.state = self._start_or_resume()
        server.nobody_finished = self.engine.missed_rounds > 0
        self.engine.wait_for_clients(min(self.strategy.min_clients, max(len(self.state.ledger.clients), 1)))
        failed_rounds = FailedRounds(self.strategy.max_failed_rounds)
        for state, result in rounds(server, self.engine, self.state, self._is_finished):
            self.state = state
            self._record_round(server.planned_from, result, server.setup.ledger)
            failed_rounds.check(result)

    def _is_finished(self, state: ServerState) -> bool:
        """Whether the run is over. Otherwise logs the heading of the next round."""
        spending = self.engine.spending
        if state.round >= self.num_rounds:
            return True
        if spending is not None and spending.is_over(state.ledger.clients):
            return self._end("every client has spent its epsilon_budget")
        if (target := self.strategy.target) is not None and any(map(target.is_reached, self._evaluations())):
            return self._end(f"reached the target {target}")
        _log.info("")
        _log.info("[ROUND %d/%d]", state.round + 1, self.num_rounds)
        return False

    def _end(self, why: str) -> bool:
        """End the run before its last round."""
        self.why_ended = why
        self.engine.log_event(why, round=self.state.round)
        return True

    def _evaluations(self) -> Iterable[Mapping[str, Any]]:
        """Return the metrics of all evaluations: on the server if there are any, otherwise on clients."""
        on_server, on_clients = self.result.evaluate_metrics_serverapp, self.result.evaluate_metrics_clientapp
        return (on_server or on_clients).values()

    def _start_or_resume(self) -> tuple[GrowingServer, ServerState]:
        """Return the server and the state of the last checkpoint, or those before the first round."""
        return self._resume() or self._start()

    def _resume(self) -> tuple[GrowingServer, ServerState] | None:
        ledgers = self.record.ledgers()
        if ledgers is None:
            return None
        first, last = ledgers
        server = self._server(first)
        restored = self.record.restore(replace(server.init(self.weights), ledger=last))
        if restored is None:
            return None
        state, saved = restored
        self.engine.restore(saved)
        restore_metrics(self.result, self.record.folder.notes)
        self._restore_configs(saved)
        self.saved = self.model(state)
        self._publish(state)
        if self.engine.late_counts:
            self.engine.late.arrived = [late for late in self.record.late_reports() if late.round <= state.round]
        for change in self.record.changes:
            self.engine.log_event("setting changed", **asdict(change))
            if change.setting == "batch_size":
                ledger = self.engine.speeds.rescale(state.ledger, change.now / change.before)
                state = replace(state, ledger=ledger)
        self.record.note_changes(state.round)
        self.engine.log_event("resumed", round=state.round, clients=len(state.ledger.clients))
        return server, state

    def _start(self) -> tuple[GrowingServer, ServerState]:
        if self.record.resumed:
            self.record.folder.restore(_empty_state(self.weights))
            self.record.note_changes(0)
        self.engine.wait_for_clients(self.strategy.min_clients)
        greetings = [greeting for _, greeting in sorted(self.engine.nodes.greetings.items())]
        self.engine.speeds.add_clients(greetings)
        server = self._server(self.engine.update_ledger(make_ledger(greetings), self.strategy.measure_network))
        state = server.init(self.weights)
        if (evaluation := self._evaluate(self.model(state), 0)) is not None:
            self.record.start(evaluation, metrics_of_round(self.result, 0), self.spread)
        return server, state

    def _server(self, ledger: Ledger) -> GrowingServer:
        return GrowingServer(
            self.method.server, self._setup, ledger, self.engine, measure_network=self.strategy.measure_network,
            aggregation=self.aggregation,
        )  # fmt: skip

    def _setup(self, ledger: Ledger) -> Setup:
        strategy = self.strategy
        setup = setup_of(strategy.method, ledger, strategy.settings, strategy.seed)
        return replace(setup, most_weight=strategy.most_weight)

    def _record_round(self, before: ServerState, result: RoundResult, first: Ledger) -> None:
        """Evaluate the model, and save the round and a checkpoint."""
        number = self.state.round
        due = number % self.strategy.settings.eval_every == 0 or number == self.num_rounds
        evaluation = self._evaluate(self.model(self.state), number) if due else None
        self._publish(self.state)
        self.result.train_metrics_clientapp[number] = self._train_metrics(result)
        self.record.round(before, self.state, result, evaluation, metrics_of_round(self.result, number), self.spread)
        self.saved = self.model(self.state)
        engine = self.engine.snapshot() | self._saved_configs()
        self.record.checkpoint(self.state, first, engine, self.layout.layout, self.saved)
        if self.engine.late_counts:
            self.record.late.prune(self.engine.late.arrived)
        if (spending := self.engine.spending) is not None:
            rows = privacy_rows(self.method, self.strategy.settings, self.state.ledger.clients, spending.releases)
            self.record.privacy(rows)

    def _saved_configs(self) -> dict[str, str]:
        """Return the configurations that an overridden hook may have changed."""
        configs = {TRAIN_HOOK: self.engine.train_config, EVALUATE_HOOK: self.evaluate_config}
        return {name: config_to_text(config) for name, config in configs.items() if overrides(self.strategy, name)}

    def _restore_configs(self, saved: Mapping[str, Any]) -> None:
        if TRAIN_HOOK in saved:
            self.engine.train_config = config_from_text(saved[TRAIN_HOOK])
        if EVALUATE_HOOK in saved:
            self.evaluate_config = config_from_text(saved[EVALUATE_HOOK])

    def _train_metrics(self, result: RoundResult) -> MetricRecord:
        """Return the figures of a round and the clients' combined custom metrics."""
        if self.aggregation is not None:
            return MetricRecord({**self.aggregation.metrics, **round_figures(result)})
        custom = list(self.engine.custom_metrics.values())
        combined = (self.strategy.train_metrics_aggr_fn or weighted_mean)(custom, WEIGHT) if custom else {}
        return MetricRecord({**dict(combined), **round_figures(result)})

    def model(self, state: ServerState) -> Weights:
        """Return the model that is evaluated and published."""
        return self.strategy.method.server.model_average.model(state)

    def _publish(self, state: ServerState) -> None:
        self.result.arrays = self.layout.record(self.model(state))

    def _evaluate(self, weights: Weights, round_number: int) -> Evaluation | None:
        """Evaluate a model on the server, on the clients, or on both. The tables prefer the server's numbers."""
        server, self.spread = None, None
        if self.evaluate_fn is not None:
            server = self.evaluate_fn(round_number, self.layout.record(weights))
            if server is not None:
                self.result.evaluate_metrics_serverapp[round_number] = server
        clients: Mapping[str, Any] = {}
        if self.strategy.evaluators.fraction:
            clients = self._evaluate_on_clients(self.layout.record(weights), round_number) or {}
        if server is None and not self.strategy.evaluators.fraction:
            return None
        for place, metrics in (("server", server or {}), ("clients", clients)):
            if metrics:
                self.engine.log_event("evaluated", round=round_number, on=place, **self._logged_metrics(metrics))
        return to_evaluation(clients if server is None else server)

    def _evaluate_on_clients(self, arrays: ArrayRecord, round_number: int) -> MetricRecord | None:
        strategy, engine = self.strategy, self.engine
        self.evaluate_config["server-round"] = round_number
        messages = strategy.configure_evaluate(round_number, arrays, self.evaluate_config, engine.grid)
        replies = engine.collect_evaluations(messages, round_number)
        self.spread = spread_over_clients(replies)
        metrics = strategy.aggregate_evaluate(round_number, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[round_number] = metrics
        return metrics

    def _logged_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return accuracy, loss and other metrics for the log. A missing accuracy or loss is logged once."""
        evaluation, missing = to_evaluation(metrics), set(missing_metrics(metrics)) - self._logged_as_missing
        self._logged_as_missing |= missing
        for name in sorted(missing):
            self.engine.log_event("not among the metrics", metric=name, found=", ".join(metrics) or "nothing",
                                  why=f"tables and reports have none; call it {name}")  # fmt: skip
        others = {name: value for name, value in metrics.items() if name not in ("accuracy", "loss", WEIGHT)}
        shown = {name: value for name, value in others.items() if isinstance(value, int | float)}
        return {"accuracy": evaluation.accuracy, "loss": evaluation.loss, "others": shown}

    def _log_event(self, event: str, **fields: Any) -> None:
        if hasattr(self, "record"):
            self.record.log(event, **fields)
        if self.strategy.log is not None:
            self.strategy.log(event, **fields)


def round_figures(result: RoundResult) -> dict[str, Any]:
    """Return the figures of a round for Flower's `Result`."""
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


def metrics_of_round(result: Result, round_number: int) -> dict[str, Any]:
    """Return the metrics of one round, to be saved in the run folder."""
    metrics = {kind: getattr(result, kind).get(round_number) for kind in METRICS_OF_ROUNDS}
    return {"round": round_number, **{kind: dict(value) for kind, value in metrics.items() if value is not None}}


def restore_metrics(result: Result, saved: Iterable[Mapping[str, Any]]) -> None:
    """Load metrics that `metrics_of_round` returned into a result."""
    for notes in saved:
        for kind in METRICS_OF_ROUNDS:
            if kind in notes:
                getattr(result, kind)[int(notes["round"])] = MetricRecord(dict(notes[kind]))


def _empty_state(weights: Weights) -> ServerState:
    """Return a state that is sufficient to detect that nothing was saved yet."""
    return ServerState(0, 0.0, weights, Ledger.start((), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 1))))
