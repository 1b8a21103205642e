"""Rounds on the wall clock: messages go out, and the round closes when all are in, at the quorum or at the deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import MissingData
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import UNDER_WAY, Evaluation, IndexArray, Ledger, RoundPlan, RoundResult, Weights
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, Message, RecordDict
from fedbalancer.flower.evaluation import MetricNames, asked, combine_metrics, questions, to_evaluation
from fedbalancer.flower.events import EventLog, line
from fedbalancer.flower.failures import Pauses
from fedbalancer.flower.ledger import ClientSpeeds, TransportTimes, joined, with_network_times
from fedbalancer.flower.mailbox import Mailbox, ReceivedReply
from fedbalancer.flower.messages import EVALUATE, HELLO, TRAIN, Instruction, ModelLayout
from fedbalancer.flower.nodes import Nodes
from fedbalancer.flower.open_round import LateReports, OpenRound
from fedbalancer.flower.reading import MOST_SAMPLES, batch_s_of, busy_s, question
from fedbalancer.flower.wire import ReplyLimit
from fedbalancer.methods.table import Method
from fedbalancer.privacy.spending import RELEASES
from fedbalancer.server.suspensions import Suspensions
from fedbalancer.store.privacy import spending_for


@dataclass(frozen=True)
class Waiting:
    """How the engine waits. `grace_s` is what a message lives beyond its deadline, `poll_s` how often replies are asked
    for, `settle_s` how long a new round waits for clients that have yet to answer the last one (for enough of them, or
    for `everybody`), `timeout_s` how long a round without a deadline may take, and how long the server waits for
    anybody to be there. `clock` and `sleep` are the wall's and replies are pulled in the
    `background`, unless a test brings its own time."""

    poll_s: float = 0.25
    grace_s: float = 5.0
    settle_s: float = 4.0
    timeout_s: float = 3600.0
    everybody: bool = False
    background: bool = True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WAITING = Waiting()


__all__ = ["WAITING", "GridEngine", "Waiting"]

ConfigureTrain = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]
"""Flower's: (round, model, configuration, grid) -> the messages of a round."""
SHORTEST_S = 1e-6
PATIENCE_S, LAST_LOOK_S = 1.0, 0.3
"""How long a pull is waited for before it goes on by itself, and how long at the deadline."""


class GridEngine:
    """Real clients behind Flower's grid, under one method's client policies."""

    def __init__(
        self,
        grid: Grid,
        method: Method,
        layout: ModelLayout,
        settings: Settings,
        *,
        run_key: str,
        waiting: Waiting = WAITING,
        transport: TransportTimes | None = None,
        most_samples: int = MOST_SAMPLES,
        authenticated_nodes: bool = False,
        train_config: Mapping[str, Any] | None = None,
        evaluate_config: Mapping[str, Any] | None = None,
        configure_train: ConfigureTrain | None = None,
        log: Callable[..., None] | None = None,
    ) -> None:
        self.method, self.layout, self.settings, self.waiting = method, layout, settings, waiting
        self.run_key, self.policies = run_key, method.client.to_json() or ""
        self.transport = transport if transport is not None else TransportTimes()
        # As in Flower, one record for all rounds: what configure_train changes stays changed.
        self.train_config, self.evaluate_config = ConfigRecord(dict(train_config or {})), dict(evaluate_config or {})
        self.configure_train = configure_train
        self._clock, self._sleep = waiting.clock, waiting.sleep
        self._events = EventLog(log)
        self.log_event, self.counts = self._events.log_event, self._events.counts
        self.grid, self.late_counts = grid, method.late.rule() != "lost"
        self.mailbox = Mailbox(grid, ReplyLimit.of(layout), waiting.clock, waiting.background)
        asked = question(run_key, settings.batch_size, settings.latency_samples)
        self.nodes = Nodes(self.mailbox, asked, waiting.clock, self.log_event, most_samples, authenticated_nodes)
        self.spending = spending_for(method, settings, ["unavailable", UNDER_WAY])
        self.ledger: Ledger | None = None
        self.accepted: dict[str, int] = {}
        self.speeds, self.missed_rounds = ClientSpeeds(), 0
        self.suspensions, self.pauses, self.played = Suspensions(), Pauses(), 0
        self.unanswered: set[str] = set()
        self._window_s, self._settled = 0.0, False
        self._round: OpenRound | None = None
        self.answers: list[ReceivedReply] = []
        self.custom_metrics: dict[str, RecordDict] = {}
        self.metric_names = MetricNames(self.log_event)
        self._late: LateReports | None = None

    # Who is there

    def wait_for_clients(self, least: int) -> None:
        """Wait until so many clients have introduced themselves."""
        until = self._clock() + self.waiting.timeout_s
        if len(self.nodes.connected_clients()) < least:
            self.log_event("waiting for clients", least=least)
        while len(self.nodes.connected_clients()) < least:
            if self._clock() > until:
                raise MissingData(
                    f"{len(self.nodes.connected_clients())} of at least {least} clients have introduced themselves in "
                    f"{self.waiting.timeout_s:g} s; start more SuperNodes or lower min_clients"
                )
            self._look()
            self._check_greetings(least)
            self._sleep(self.waiting.poll_s)

    def _check_greetings(self, least: int) -> None:
        """Enough nodes are there, but too many of them cannot introduce themselves: waiting would not help."""
        failed, there = self.nodes.failing_nodes(), len(self.nodes.connected)
        if there >= least > there - len(failed):
            node, why = next(iter(failed.items()))
            raise MissingData(f"{len(failed)} of {there} nodes cannot introduce themselves; node {node}: {line(why)}")

    def update_ledger(self, ledger: Ledger, measure_network: bool = True) -> Ledger:
        """The ledger for the next round: with rows for clients that joined, with what late replies taught, and with
        measured transport, which counts the guard's seconds more for every round that nobody made."""
        self._look()
        grown = joined(ledger, [greeting for _, greeting in sorted(self.nodes.greetings.items())])
        for client in grown.clients[len(ledger.clients) :]:
            self.log_event("client joined", client=client)
            self.speeds.add_clients([self.nodes.greetings[client]])
        guard_s = self.missed_rounds * self.settings.guard_s
        expected_s = {client: seconds + guard_s for client, seconds in self.transport.all_expected_s().items()}
        self.ledger = self.speeds.update_speeds(with_network_times(grown, expected_s)) if measure_network else grown
        return self.ledger

    def available(self, clock_s: float) -> IndexArray:
        """Ledger rows of the clients that are there and have nothing left to answer."""
        if not self._settled:
            self.wait_for_free_clients()
        self._settled = False
        return self.known.rows(tuple(self._free()[0]))

    def wait_for_free_clients(self) -> None:
        """Wait a little for clients that are still busy, and as long as it takes for the first."""
        began = self._clock()
        while True:
            self._look()
            free, busy = self._free()
            waited_s = self._clock() - began
            enough = len(free) >= self.settings.clients_per_round and not self.waiting.everybody
            if free and (enough or not busy or waited_s >= self.waiting.settle_s):
                break
            if self.late_counts and not self.late.is_empty:  # the others are under way, and a round may be without them
                break
            if waited_s > self.waiting.timeout_s:
                raise MissingData(f"no client has been free for {waited_s:.0f} s; are the SuperNodes running?")
            self._sleep(self.waiting.poll_s)
        self._window_s, self._settled = self._clock() - began, True

    def suspended(self, suspensions: Suspensions, played: int) -> Suspensions:
        """Who sits out after `played` rounds: also those that left an order unanswered, until they restart."""
        restarted, self.nodes.restarted = self.nodes.restarted, set()
        self.pauses.forget(restarted)
        silent, self.unanswered = self.unanswered - restarted, set()
        suspensions = suspensions.clear_silent(restarted).suspend_silent(sorted(silent), played)
        for client in sorted(silent):
            self.log_event(
                "sits out", client=client, round=played, until=suspensions.until[client], why="it did not answer"
            )
        self.suspensions, self.played = suspensions, played
        return suspensions

    def _free(self) -> tuple[list[str], list[str]]:
        present = (
            client for client in self.nodes.connected_clients() if client in self.known.position and self._may(client)
        )
        there = self.pauses.active(self.suspensions.eligible(present, self.played), self.played)
        busy = self.mailbox.busy() | self.late.clients
        return [client for client in there if client not in busy], [client for client in there if client in busy]

    def idle(self) -> list[str]:
        """The clients that can be reached and have nothing to answer, in order of id."""
        busy = self.mailbox.busy()
        return [client for client in self.nodes.connected_clients() if client not in busy]

    def _may(self, client: str) -> bool:
        return self.spending is None or self.spending.may(client)

    @property
    def known(self) -> Ledger:
        """The ledger of all clients that have introduced themselves."""
        if self.ledger is None:
            raise RuntimeError("the engine has no ledger yet: welcome() comes before the first round")
        return self.ledger

    # A round

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult:
        """Send the orders, and take what comes until the round closes."""
        began = self._clock()
        limit_s = min(plan.order.deadline_s if plan.cohort else math.inf, self.waiting.timeout_s)
        self._round = current = OpenRound(self, plan, weights)
        self.log_event("round", round=plan.order.round, deadline_s=plan.order.deadline_s, cohort=list(plan.cohort),
                 loss_threshold=plan.order.loss_threshold, quorum=plan.quorum)  # fmt: skip
        current.send(self.waiting.timeout_s if self.late_counts else limit_s + self.waiting.grace_s)
        while True:
            self.poll(limit_s - (self._clock() - began))
            past_s = self._clock() - began
            if current.is_over or past_s >= limit_s:
                break
            # Never nothing: what is left may be less than the clock can tell apart.
            self._sleep(max(min(self.waiting.poll_s, limit_s - past_s), SHORTEST_S))
        self._round = None
        seconds = self._clock() - began
        result = current.result(seconds, self._window_s)
        self.accepted |= {report.client: plan.order.round - report.staleness for report in result.reports}
        clients = sorted(current.metrics)
        kept = self.metric_names.kept([current.metrics[client] for client in clients])
        self.custom_metrics = dict(zip(clients, kept, strict=True))
        if self.spending is not None:
            self.spending.note(result)
        self.log_event("round closed", round=plan.order.round, seconds=round(seconds, 3), completed=len(result.reports),
                 missing={missing.client: missing.why for missing in result.missing})  # fmt: skip
        return result

    @property
    def open_round(self) -> OpenRound:
        """The round that runs."""
        if self._round is None:
            raise RuntimeError("no round is open")
        return self._round

    @property
    def late(self) -> LateReports:
        """Reports of closed rounds. Made when it is first needed, for the mailbox may be another by then."""
        if self._late is None:
            self._late = LateReports(self.mailbox)
        return self._late

    def instruction(self, plan: RoundPlan, client: str) -> Instruction:
        """What one client is told."""
        known = self.known
        row = known.position[client]
        return Instruction(
            client=client,
            order=plan.order,
            budget_s=self.transport.budget_s(client, plan.order.round, plan.order.deadline_s),
            accepted_round=self.accepted.get(client, 0),
            batch_s=float(known.batch_s_sum[row] / known.batch_s_count[row]),
            run_key=self.run_key,
            method=self.method.name,
            policies=self.policies,
            late_counts=self.late_counts,
        )

    def _look(self) -> None:
        self.nodes.refresh()
        self.poll()

    def poll(self, left_s: float = PATIENCE_S) -> None:
        """Take what has come, each where it belongs; with `left_s` until the deadline, not much longer than that."""
        before = self.mailbox.counts["duplicate"]
        for received in self.mailbox.poll(min(max(left_s, LAST_LOOK_S), PATIENCE_S)):
            self.nodes.unresponsive.discard(received.sent.node)
            if received.sent.kind == HELLO:
                self.nodes.handle_greeting(received)
                self._greeted(received)
            elif received.sent.kind == EVALUATE:
                self.answers.append(received)
            elif self._round is not None and received.sent.round == self._round.plan.order.round:
                self._round.take(received)
            else:
                self._too_late(received)
        if (twice := self.mailbox.counts["duplicate"] - before) > 0:
            self.log_event("duplicate", replies=twice)

        for sent in self.mailbox.expired:
            if sent.kind == TRAIN:
                if not self.late_counts:  # it was busy for its budget at most: this is the least that transport took
                    self.transport.add_lower_bound(sent.client, sent.ttl_s - sent.budget_s)
                self.log_event("no reply", client=sent.client, round=sent.round)
                self.nodes.unresponsive.add(sent.node)
                self.unanswered.add(sent.client)
        self.mailbox.expired.clear()

    def _too_late(self, received: ReceivedReply) -> None:
        """A reply to a round that is closed joins the next, where the method counts it; otherwise how long it took is
        worth knowing."""
        client, message = received.sent.client, received.message
        if self.late_counts:
            if self.late.take(received):
                self.log_event(
                    "late report", client=client, round=received.sent.round, seconds=round(received.seconds, 3)
                )
            return
        if message.has_content():
            self.transport.add_order(client, received.seconds - busy_s(message, received.seconds))
            self.speeds.add_measurement(client, batch_s_of(message, received.seconds))
        if received.problem:
            self.log_event("invalid", client=client, round=received.sent.round, why=received.problem)
        what = "with a report" if message.has_content() else f"with error {message.error.code}"
        self.log_event(
            "late reply", client=client, round=received.sent.round, seconds=round(received.seconds, 3), what=what
        )

    def _greeted(self, received: ReceivedReply) -> None:
        """A client's first overhead is that of its greeting."""
        for greeting in self.nodes.greetings.values():
            if self.nodes.node_of[greeting.client] == received.sent.node:
                self.transport.add_greeting(greeting.client, greeting.network_s)

    # The model on data

    def evaluate(self, weights: Weights) -> Evaluation:
        """On the clients' data."""
        config = ConfigRecord({"server-round": 0, **self.evaluate_config})
        answers = asked(self, questions(self, self.idle(), self.layout.record(weights), config), 0)
        fault = lambda node, why: self.log_event("evaluation failed", node=node, why=why)  # noqa: E731
        return to_evaluation(combine_metrics(answers, fault, self.metric_names))

    # What outlives a crash

    def snapshot(self) -> dict[str, Any]:
        """What the engine must remember over a restart."""
        saved = {
            "accepted": dict(self.accepted), "transport": self.transport.to_json(),
            "assumed": sorted(self.speeds.assumed), "missed_rounds": self.missed_rounds,
            "pauses": self.pauses.to_json(),
            "owner_of": dict(self.nodes.owner_of), "metric_names": sorted(self.metric_names.names),
        }  # fmt: skip
        return saved if self.spending is None else saved | {RELEASES: dict(self.spending.releases)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up a snapshot."""
        self.accepted = {str(client): int(round) for client, round in saved["accepted"].items()}
        self.transport.load(saved["transport"])
        self.nodes.owner_of = {str(client): int(node) for client, node in saved.get("owner_of", {}).items()}
        self.metric_names.names = set(saved.get("metric_names", ()))
        self.speeds.assumed = set(saved.get("assumed", ()))
        self.missed_rounds = int(saved.get("missed_rounds", 0))
        self.pauses.load(saved["pauses"])
        if self.spending is not None:
            self.spending.load(saved[RELEASES])
