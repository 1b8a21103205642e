"""The engine on Flower: sends orders to real clients and closes each round on the wall clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import UNDER_WAY, Evaluation, IndexArray, Ledger, RoundPlan, RoundResult, Weights
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, Message, RecordDict
from fedbalancer.flower.evaluation import MetricNames, combine_metrics, to_evaluation
from fedbalancer.flower.events import EventLog, LogEvent, shorten
from fedbalancer.flower.failures import Pauses
from fedbalancer.flower.ledger import ClientSpeeds, TransportTimes, add_clients, with_network_times
from fedbalancer.flower.mailbox import Mailbox, OutgoingMessage, ReceivedReply
from fedbalancer.flower.messages import ARRAYS, CONFIG, DECLINED, EVALUATE, HELLO, TRAIN, VERSION, Instruction
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.flower.nodes import Nodes
from fedbalancer.flower.open_round import ConfigureTrain, LateReports, OpenRound
from fedbalancer.flower.reading import MOST_SAMPLES, batch_s_of, busy_s, greeting_request
from fedbalancer.flower.secure import SUM, SecureAggregation
from fedbalancer.flower.secure_rounds import SecureSums
from fedbalancer.flower.wire import ReplyLimit
from fedbalancer.methods.table import Method
from fedbalancer.privacy.accounting import RELEASES
from fedbalancer.server.report_check import Suspensions
from fedbalancer.store.privacy import spending_for

SHORTEST_S = 1e-6
PATIENCE_S, LAST_LOOK_S = 1.0, 0.3
"""Longest wait for replies in one poll, in general and at the deadline."""
ELIGIBLE_S, MOST_ELIGIBLE_S = 1.0, 30.0
"""Seconds between two looks for eligible clients, at first and at most."""
EVALUATE_S, SOON_S = 120.0, 10.0
"""Longest evaluation on clients, and the least time of the second half of the clients once the first half is in."""


@dataclass(frozen=True)
class Waiting:
    """Settings for waiting for clients.

    Args:
        poll_s: Seconds between two polls for replies.
        grace_s: Seconds that a message lives beyond its deadline.
        settle_s: Seconds that a new round waits for clients that have not answered the previous one.
        timeout_s: Longest duration of a round without a deadline, and longest wait for clients.
        everybody: Whether a new round waits for all clients instead of only enough of them.
        background: Whether replies are pulled in threads.
        clock: Returns the current time in seconds.
        sleep: Waits for a number of seconds.
    """

    poll_s: float = 0.25
    grace_s: float = 5.0
    settle_s: float = 4.0
    timeout_s: float = 3600.0
    everybody: bool = False
    background: bool = True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WAITING = Waiting()
GUARD_S = 10.0
"""Seconds added to the expected transport time for every round in a row that nobody finished."""


class GridEngine:
    """Runs rounds on the real clients behind Flower's grid.

    Args:
        grid: Flower's grid.
        method: The method, whose client policies are sent with every order.
        layout: Names, shapes and types of the model's arrays.
        settings: Settings of the run.
        run_key: Name of the run; clients keep their loss lists under it.
        waiting: How the server waits.
        transport: Measured transport times of the clients.
        most_samples: Largest number of samples that a client may report.
        authenticated_nodes: Whether a client id belongs to the first node that used it.
        train_config: Configuration that is sent with every order.
        evaluate_config: Configuration that is sent with every evaluation.
        configure_train: Flower's hook that builds the messages of a round.
        secure: Settings of secure aggregation; None without it.
        log: Called with the name and the fields of every event.
    """

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
        secure: SecureAggregation | None = None,
        log: LogEvent | None = None,
    ) -> None:
        self.grid, self.method, self.layout, self.settings, self.waiting = grid, method, layout, settings, waiting
        self.run_key, self.policies = run_key, method.client.to_json() or ""
        self.transport = transport if transport is not None else TransportTimes()
        # One record for all rounds, as in Flower: changes by configure_train persist.
        self.train_config, self.evaluate_config = ConfigRecord(dict(train_config or {})), dict(evaluate_config or {})
        self.configure_train: ConfigureTrain | None = configure_train
        self._clock, self._sleep = waiting.clock, waiting.sleep
        self._events = EventLog(log, run_key)
        self.counts = self._events.counts
        self.late_counts = method.late.rule() != "lost"
        self.mailbox = Mailbox(
            grid, ReplyLimit.of(layout, method.client.train.up_arrays(layout.layout)), waiting.clock, waiting.background
        )
        request = greeting_request(run_key, settings.batch_size, settings.latency_samples)
        self.nodes = Nodes(self.mailbox, request, waiting.clock, self.log_event, most_samples, authenticated_nodes)
        self.spending = spending_for(method, settings, ["unavailable", DECLINED, UNDER_WAY])
        self._ledger: Ledger | None = None
        self.accepted: dict[str, int] = {}
        self.speeds, self.missed_rounds = ClientSpeeds(), 0
        self.suspensions, self.pauses, self._rounds_done = Suspensions(), Pauses(), 0
        self._unanswered: set[str] = set()
        self._window_s, self._has_waited = 0.0, False
        self._round: OpenRound | None = None
        self._evaluations: list[ReceivedReply] = []
        self.custom_metrics: dict[str, RecordDict] = {}
        self.metric_names = MetricNames(self.log_event)
        self._late: LateReports | None = None
        self.sums = None if secure is None else SecureSums(self, secure)
        if secure is not None:  # an older client would send its update in the clear
            self.nodes.least_version = VERSION

    def log_event(self, event: str, **fields: Any) -> None:
        """Log an event, count it, and pass it to the listener."""
        self._events.log(event, **fields)

    # Clients

    def wait_for_clients(self, least: int) -> None:
        """Wait until `least` clients have introduced themselves.

        Raises:
            MissingData: The timeout is over, or too many nodes fail to introduce themselves.
        """
        until = self._clock() + self.waiting.timeout_s
        if len(self.nodes.connected_clients()) < least:
            self.log_event("waiting for clients", least=least)
        while len(self.nodes.connected_clients()) < least:
            if self._clock() > until:
                raise MissingData(
                    f"{len(self.nodes.connected_clients())} of at least {least} clients have introduced themselves in "
                    f"{self.waiting.timeout_s:g} s; start more SuperNodes or lower min_clients"
                )
            self._refresh()
            self._check_failing_nodes(least)
            self._sleep(self.waiting.poll_s)

    def _check_failing_nodes(self, least: int) -> None:
        """Fail early if enough nodes are connected but too many of them cannot introduce themselves."""
        failing, connected = self.nodes.failing_nodes(), len(self.nodes.connected)
        if connected >= least > connected - len(failing):
            node, why = next(iter(failing.items()))
            raise MissingData(
                f"{len(failing)} of {connected} nodes cannot introduce themselves; node {node}: {shorten(why)}"
            )

    def update_ledger(self, ledger: Ledger, measure_network: bool = True) -> Ledger:
        """Return the ledger for the next round.

        New clients get a row, and measured speeds and transport times replace expected ones. Every round that nobody
        finished adds `GUARD_S` seconds of transport.

        Args:
            ledger: The ledger after the last round.
            measure_network: Whether measurements are used.
        """
        self._refresh()
        grown = add_clients(ledger, [greeting for _, greeting in sorted(self.nodes.greetings.items())])
        for client in grown.clients[len(ledger.clients) :]:
            self.log_event("client joined", client=client)
            self.speeds.add_clients([self.nodes.greetings[client]])
        guard_s = self.missed_rounds * GUARD_S
        expected_s = {client: seconds + guard_s for client, seconds in self.transport.all_expected_s().items()}
        updated = self.speeds.update_speeds(with_network_times(grown, expected_s)) if measure_network else grown
        self._ledger = replace(updated, tags=self.nodes.tags())
        return self._ledger

    @property
    def has_ledger(self) -> bool:
        """Whether `update_ledger` has been called."""
        return self._ledger is not None

    @property
    def ledger(self) -> Ledger:
        """The ledger of all clients that have introduced themselves."""
        if self._ledger is None:
            raise RuntimeError("the engine has no ledger yet: call update_ledger() before the first round")
        return self._ledger

    def available(self, clock_s: float) -> IndexArray:
        """Return the ledger rows of the clients that are connected and have nothing left to answer."""
        if not self._has_waited:
            self.wait_for_free_clients()
        self._has_waited = False
        return self.ledger.rows(tuple(self._split_by_busy()[0]))

    def wait_for_free_clients(self) -> None:
        """Wait up to `settle_s` seconds for busy clients, and until the timeout for the first free one."""
        began = self._clock()
        while True:
            self._refresh()
            free, busy = self._split_by_busy()
            waited_s = self._clock() - began
            enough = len(free) >= self.settings.clients_per_round and not self.waiting.everybody
            if free and (enough or not busy or waited_s >= self.waiting.settle_s):
                break
            if self.late_counts and not self.late.is_empty:  # a round can consist of late reports only
                break
            if waited_s > self.waiting.timeout_s:
                raise MissingData(f"no client has been free for {waited_s:.0f} s; are the SuperNodes running?")
            self._sleep(self.waiting.poll_s)
        self._window_s, self._has_waited = self._clock() - began, True

    def is_any_eligible(self, eligible: Callable[[IndexArray], bool], waited_s: float) -> bool:
        """Return whether a round can start: a free client is eligible, or a late report can join the round.

        Args:
            eligible: Whether any of these ledger rows may be selected.
            waited_s: Seconds that the round has already waited.
        """
        rows = self.ledger.rows(tuple(self._split_by_busy()[0]))
        if self.late_counts and not self.late.is_empty:
            return True
        if len(rows):
            return eligible(rows)
        if self.nodes.connected_clients() and waited_s:  # all are busy, perhaps with a request for their tags
            return False
        self._has_waited = False  # `available` waits for clients
        return True

    def wait_for_eligible(self, waited_s: float) -> float:
        """Wait for a moment, because no client is eligible; returns the seconds.

        Args:
            waited_s: Seconds that the round has already waited.
        """
        if not waited_s:
            self.log_event("waiting for eligible clients", connected=len(self.nodes.connected_clients()))
        began = self._clock()
        self._sleep(min(max(ELIGIBLE_S, waited_s / 10), MOST_ELIGIBLE_S))
        return self._clock() - began

    def update_suspensions(self, suspensions: Suspensions, rounds_done: int) -> Suspensions:
        """Suspend clients that left an order unanswered, and reinstate clients that have restarted.

        Args:
            suspensions: The suspensions after the last round.
            rounds_done: Number of completed rounds.
        """
        restarted, self.nodes.restarted = self.nodes.restarted, set()
        self.pauses.forget(restarted)
        silent, self._unanswered = self._unanswered - restarted, set()
        suspensions = suspensions.clear_silent(restarted).suspend_silent(sorted(silent), rounds_done)
        for client in sorted(silent):
            until = suspensions.until[client]
            self.log_event("sits out", client=client, round=rounds_done, until=until, why="it did not answer")
        self.suspensions, self._rounds_done = suspensions, rounds_done
        return suspensions

    def _split_by_busy(self) -> tuple[list[str], list[str]]:
        """Return the clients that may take part in a round: the free ones and the busy ones."""
        connected = (client for client in self.nodes.connected_clients() if client in self.ledger.position)
        allowed = [client for client in connected if self.spending is None or self.spending.can_release(client)]
        active = self.pauses.active(self.suspensions.eligible(allowed, self._rounds_done), self._rounds_done)
        busy = self.mailbox.busy() | self.late.clients
        return [client for client in active if client not in busy], [client for client in active if client in busy]

    def free_clients(self) -> list[str]:
        """Return the clients that may start now and have not taken part in the open round."""
        self.nodes.refresh()
        done = {*self.open_round.reports, *self.open_round.missing} | self.late.pending
        return [client for client in self._split_by_busy()[0] if client not in done]

    def idle_clients(self) -> list[str]:
        """Return the connected clients without an unanswered message, sorted by id."""
        busy = self.mailbox.busy()
        return [client for client in self.nodes.connected_clients() if client not in busy]

    # A round

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float, fold: Any = None) -> RoundResult:
        """Send the orders of a round and collect replies until it closes; all updates are kept until then."""
        began = self._clock()
        limit_s = min(plan.order.deadline_s if plan.cohort or plan.concurrency else math.inf, self.waiting.timeout_s)
        limit_s = min(limit_s, plan.timer_s)
        self._round = current = OpenRound(self, plan, weights)
        self.log_event("round", round=plan.order.round, deadline_s=plan.order.deadline_s, cohort=list(plan.cohort),
                       loss_threshold=plan.order.loss_threshold, quorum=plan.quorum)  # fmt: skip
        timeout_s = self.waiting.timeout_s
        ttl_s = timeout_s if self.late_counts else limit_s + self.waiting.grace_s
        current.send(ttl_s, timeout_s)
        while True:
            self.poll(limit_s - (self._clock() - began))
            past_s = self._clock() - began
            is_late = past_s >= (limit_s if current.can_close else timeout_s)
            if not is_late:
                current.refill(ttl_s, timeout_s)
            if is_late or current.is_over:
                break
            # At least SHORTEST_S: the rest may be below the clock's resolution.
            left_s = limit_s - past_s if past_s < limit_s else self.waiting.poll_s
            self._sleep(max(min(self.waiting.poll_s, left_s), SHORTEST_S))
        self._round = None
        if self.sums is not None:
            self.sums.finish(current)
        seconds = self._clock() - began
        result = current.result(seconds, self._window_s)
        self.accepted |= {report.client: plan.order.round - report.staleness for report in result.reports}
        clients = sorted(current.metrics)
        recorded = self.metric_names.filter_metrics([current.metrics[client] for client in clients])
        self.custom_metrics = dict(zip(clients, recorded, strict=True))
        if self.spending is not None:
            self.spending.note(result)
        self.log_event("round closed", round=plan.order.round, seconds=round(seconds, 3), completed=len(result.reports),
                       missing={missing.client: missing.why for missing in result.missing})  # fmt: skip
        return result

    @property
    def open_round(self) -> OpenRound:
        """The round that runs now."""
        if self._round is None:
            raise RuntimeError("no round is open")
        return self._round

    @property
    def late(self) -> LateReports:
        """Reports of closed rounds. Created at first use, because the mailbox may be replaced before."""
        if self._late is None:
            self._late = LateReports(self.mailbox)
        return self._late

    def instruction(self, plan: RoundPlan, client: str) -> Instruction:
        """Return the instruction for one client of a round."""
        row = self.ledger.position[client]
        return Instruction(
            client=client,
            order=plan.order,
            budget_s=self.transport.budget_s(client, plan.order.round, plan.order.deadline_s),
            accepted_round=self.accepted.get(client, 0),
            batch_s=float(self.ledger.batch_s_sum[row] / self.ledger.batch_s_count[row]),
            run_key=self.run_key,
            method=self.method.name,
            policies=self.policies,
            late_counts=self.late_counts,
            version=self.nodes.greetings[client].version,
            sum_bits=0 if self.sums is None else self.sums.secure.bits(len(plan.cohort)),
            sum_clip=0.0 if self.sums is None else self.sums.secure.clip,
        )

    def _refresh(self) -> None:
        self.nodes.refresh()
        self.poll()

    def poll(self, left_s: float = PATIENCE_S) -> None:
        """Handle all new replies and expired messages.

        Args:
            left_s: Seconds until the deadline; the poll takes hardly longer.
        """
        before = self.mailbox.counts["duplicate"]
        for received in self.mailbox.poll(min(max(left_s, LAST_LOOK_S), PATIENCE_S)):
            self.nodes.unresponsive.discard(received.sent.node)
            if received.sent.kind == HELLO:
                self.nodes.handle_greeting(received)
                self._add_greeting_time(received)
            elif received.sent.kind == EVALUATE:
                self._evaluations.append(received)
            elif received.sent.kind == SUM:
                if self.sums is not None:
                    self.sums.handle_reply(received)
            elif self._round is not None and received.sent.round == self._round.plan.order.round:
                self._round.handle_reply(received)
            else:
                self._handle_late_reply(received)
        if (duplicates := self.mailbox.counts["duplicate"] - before) > 0:
            self.log_event("duplicate", replies=duplicates)

        for sent in self.mailbox.expired:
            if sent.kind == TRAIN:
                if not self.late_counts:  # the client worked for its budget at most: transport took the rest
                    self.transport.add_lower_bound(sent.client, sent.ttl_s - sent.budget_s)
                self.log_event("no reply", client=sent.client, round=sent.round)
                self.nodes.unresponsive.add(sent.node)
                self._unanswered.add(sent.client)
        self.mailbox.expired.clear()

    def _handle_late_reply(self, received: ReceivedReply) -> None:
        """Keep a reply to a closed round if the method counts it; otherwise use its measurements only."""
        client, message, seconds = received.sent.client, received.message, round(received.seconds, 3)
        if self.late_counts:
            if self.late.handle_reply(received):
                self.log_event("late report", client=client, round=received.sent.round, seconds=seconds)
            return
        if message.has_content():
            self.transport.add_order(client, received.seconds - busy_s(message, received.seconds))
            self.speeds.add_measurement(client, batch_s_of(message, received.seconds))
        if received.problem:
            self.log_event("invalid", client=client, round=received.sent.round, why=received.problem)
        what = "with a report" if message.has_content() else f"with error {message.error.code}"
        self.log_event("late reply", client=client, round=received.sent.round, seconds=seconds, what=what)

    def _add_greeting_time(self, received: ReceivedReply) -> None:
        """Use the transport time of a greeting as the client's first."""
        for greeting in self.nodes.greetings.values():
            if self.nodes.node_of[greeting.client] == received.sent.node:
                self.transport.add_greeting(greeting.client, greeting.network_s)

    # Evaluation on clients

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the data of all idle clients."""
        config = ConfigRecord({"server-round": 0, **self.evaluate_config})
        messages = self.evaluation_messages(self.idle_clients(), self.layout.record(weights), config)
        answers = self.collect_evaluations(messages, 0)
        fault = lambda node, why: self.log_event("evaluation failed", node=node, why=why)  # noqa: E731
        return to_evaluation(combine_metrics(answers, fault, self.metric_names))

    def evaluation_messages(self, clients: Iterable[str], arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Build one message for each client that asks it to evaluate a model."""
        content = RecordDict({ARRAYS: arrays, CONFIG: config})
        return [Message(content, self.nodes.node_of[client], EVALUATE) for client in clients]

    def collect_evaluations(self, messages: Iterable[Message], round_number: int) -> list[Message]:
        """Send evaluation messages and return the answers. Clients without an answer are logged.

        Args:
            messages: Messages of type `evaluate` for connected nodes.
            round_number: Round after which the model is evaluated, for the log.
        """
        names = {node: client for client, node in self.nodes.node_of.items()}
        outgoing = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if kind != EVALUATE or node not in self.nodes.connected:
                raise BadSetting(f"configure_evaluate made a message of type {kind!r} for node {node}; it must be of "
                                 f"type {EVALUATE!r}, for a connected node")  # fmt: skip
            outgoing.append(OutgoingMessage(node, names.get(node, f"node {node}"), message.content))
        self._evaluations = []
        sent = self.mailbox.send(EVALUATE, outgoing, 0, EVALUATE_S)
        self._wait_for_evaluations(len(sent))
        answered = {received.sent.client for received in self._evaluations}
        for client in sorted({one.client for one in sent} - answered):
            self.log_event("evaluation failed", client=client, round=round_number, why="no reply in time")
        return [received.message for received in self._evaluations]

    def _wait_for_evaluations(self, count: int) -> None:
        """Wait for `count` answers, but not more than twice as long as the first half of them took."""
        began, limit_s = self._clock(), EVALUATE_S
        while len(self._evaluations) < count and self._clock() - began < limit_s:
            self.poll()
            if limit_s == EVALUATE_S and 2 * len(self._evaluations) >= count:
                limit_s = min(max(2 * (self._clock() - began), SOON_S), EVALUATE_S)
            self._sleep(self.waiting.poll_s)

    # Checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        saved = {
            "accepted": dict(self.accepted), "transport": self.transport.to_json(),
            "assumed": sorted(self.speeds.assumed), "missed_rounds": self.missed_rounds,
            "pauses": self.pauses.to_json(), "owner_of": dict(self.nodes.owner_of),
            "metric_names": sorted(self.metric_names.names),
        }  # fmt: skip
        return saved if self.spending is None else saved | {RELEASES: dict(self.spending.releases)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load a snapshot."""
        self.accepted = {str(client): int(number) for client, number in saved["accepted"].items()}
        self.transport.load(saved["transport"])
        self.nodes.owner_of = {str(client): int(node) for client, node in saved["owner_of"].items()}
        self.metric_names.names = set(saved["metric_names"])
        self.speeds.assumed = set(saved["assumed"])
        self.missed_rounds = int(saved["missed_rounds"])
        self.pauses.load(saved["pauses"])
        if self.spending is not None:
            self.spending.load(saved[RELEASES])
