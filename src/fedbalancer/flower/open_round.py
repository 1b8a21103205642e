"""One round while it runs, and the late reports of rounds that have closed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedbalancer.client.round import decode_summaries
from fedbalancer.client.training import check_order_arrays, make_part, rank_speeds
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import UNDER_WAY, ClientReport, FailedClient, Ledger, RoundPlan, RoundResult, Weights
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, Message, MetricRecord, RecordDict
from fedbalancer.flower.events import shorten
from fedbalancer.flower.failures import SILENT
from fedbalancer.flower.ledger import ClientSpeeds, TransportTimes
from fedbalancer.flower.mailbox import Mailbox, OutgoingMessage, ReceivedReply
from fedbalancer.flower.messages import (
    ARRAYS,
    CONFIG,
    DECLINED,
    FEDBALANCER,
    METHOD_ARRAYS,
    METRICS,
    TRAIN,
    WEIGHT,
    ClientMeasurements,
    Instruction,
    custom_metrics,
    pack_arrays,
    read_tags,
)
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout
from fedbalancer.flower.nodes import Nodes
from fedbalancer.flower.reading import Expected, UnannouncedSize, batch_s_of, split_timings, unpack
from fedbalancer.flower.secure import read_keys
from fedbalancer.methods.table import Method
from fedbalancer.server.report_check import INVALID

ConfigureTrain = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]
"""Flower's hook: (round, model, configuration, grid) -> the messages of a round."""


class RoundHost(Protocol):
    """The engine, as a round uses it."""

    grid: Grid
    method: Method
    layout: ModelLayout
    mailbox: Mailbox
    nodes: Nodes
    transport: TransportTimes
    speeds: ClientSpeeds
    train_config: ConfigRecord
    configure_train: ConfigureTrain | None
    sums: Any

    @property
    def ledger(self) -> Ledger: ...
    @property
    def late(self) -> LateReports: ...
    def instruction(self, plan: RoundPlan, client: str) -> Instruction: ...
    def free_clients(self) -> list[str]: ...
    def log_event(self, event: str, **fields: Any) -> None: ...


class OpenRound:
    """Sends the orders of a round, collects its replies and builds its result.

    Args:
        host: The engine.
        plan: Clients, order and quorum of the round.
        weights: The model that is sent.
    """

    def __init__(self, host: RoundHost, plan: RoundPlan, weights: Weights) -> None:
        self._host, self.plan, self.weights = host, plan, weights
        self.reports: dict[str, ClientReport] = {}
        self.missing: dict[str, FailedClient] = {}
        self.metrics: dict[str, RecordDict] = {}
        self.keys: dict[str, tuple[bytes, bytes]] = {}
        """Public keys of the reporters, for secure aggregation."""
        self.up_bytes = 0
        self._arrays: ArrayRecord | None = None
        self._starting: tuple[str, ...] = plan.cohort
        self._ranks = {} if host.method.part.is_whole else rank_clients(host.ledger)

    @property
    def is_over(self) -> bool:
        """Whether the round can close before its deadline."""
        answered = len(self.reports) + len(self.missing) >= len(self.plan.cohort)
        waits_for_others = self.plan.late == "counts" or (self.plan.late == "joins" and not self.plan.cohort)
        return self._is_full or (answered and not (waits_for_others and self._host.late.waiting))

    @property
    def can_close(self) -> bool:
        """Whether the deadline closes the round: without a timer, an asynchronous server needs at least one report."""
        if self.plan.late != "counts" or math.isfinite(self.plan.timer_s):
            return True
        return bool(self.reports or self._host.late.arrived)

    @property
    def _is_full(self) -> bool:
        """Whether the quorum is reached, by the round's own clients or, if late reports count, by any."""
        if self.plan.late == "counts":
            return len(self.reports) + len(self._host.late.arrived) >= self.plan.quorum
        if self.plan.late == "joins" and not self.plan.cohort:  # no client is free: one late report is enough
            return bool(self._host.late.arrived)
        return len(self.reports) >= self.plan.quorum

    def messages(self, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Build one message for each connected client that starts now. Flower uploads the shared model once."""
        sent = pack_arrays(self.plan.order.arrays)
        return [
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: config, FEDBALANCER: self._instruction(client).record(), **sent}),
                node,
                TRAIN,
            )
            for client, node in self._host.nodes.connected_clients().items()
            if client in self._starting
        ]

    def refill(self, ttl_s: float, timeout_s: float) -> None:
        """Fill the places that are free: send the order to the first free clients of the plan's reserve.

        Args:
            ttl_s: Time to live of the messages, in seconds.
            timeout_s: Longest duration of a round without a deadline, in seconds.
        """
        room = self.plan.concurrency - len(self._host.mailbox.waiting(TRAIN))
        if room <= 0 or not self.plan.reserve or self._is_full:
            return
        free = set(self._host.free_clients())
        clients = [client for client in self.plan.reserve if client in free][:room]
        if clients:
            self.plan, self._starting = self.plan.start_from_reserve(clients), tuple(sorted(clients))
            self._host.log_event("refill", round=self.plan.order.round, clients=list(self._starting))
            self.send(ttl_s, timeout_s)

    def send(self, ttl_s: float, timeout_s: float) -> None:
        """Send the orders to the clients that start now: the cohort, or those of a `refill`.

        Args:
            ttl_s: Time to live of the messages, in seconds.
            timeout_s: Longest duration of a round without a deadline, in seconds.
        """
        host, number = self._host, self.plan.order.round
        check_order_arrays(self.plan.order.arrays, self._host.method.train, self._host.layout.layout)
        self._arrays = arrays = self._arrays or host.layout.record(self.weights)
        config = host.train_config
        config["server-round"] = number
        if host.configure_train is None:
            messages: Iterable[Message] = self.messages(arrays, config)
        else:
            messages = host.configure_train(number, arrays, config, host.grid)
        outgoing = [self._outgoing(message, arrays, timeout_s) for message in messages]
        sent_to = {sent.client for sent in host.mailbox.send(TRAIN, outgoing, number, ttl_s)}
        for client in self._starting:
            if client not in sent_to:
                gone = client not in host.nodes.connected_clients()
                why = "its node is gone" if gone else "nothing was sent to it"
                self._mark_missing(client, "unavailable", why)

    def _instruction(self, client: str) -> Instruction:
        return replace(self._host.instruction(self.plan, client), rank=self._ranks.get(client, 0.0))

    def _outgoing(self, message: Message, arrays: ArrayRecord, timeout_s: float) -> OutgoingMessage:
        """Check a message of `configure_train`, which a user may have overridden."""
        node, kind, content = message.metadata.dst_node_id, message.metadata.message_type, message.content
        client = next((name for name, at in self._host.nodes.connected_clients().items() if at == node), "")
        if kind != TRAIN or client not in self._starting:
            raise BadSetting(f"configure_train made a message of type {kind!r} for node {node}; it must be of type "
                             f"{TRAIN!r}, for a client of the round: clients are chosen by the method")  # fmt: skip
        sent = content.array_records.get(ARRAYS)
        if sent is not arrays and sent != arrays:
            raise BadSetting(f"configure_train changed the model for client {client!r}; updates are relative to it")
        instruction = self._instruction(client)
        if FEDBALANCER not in content.config_records:
            content = RecordDict({**content, FEDBALANCER: instruction.record()})
        if self.plan.order.arrays and METHOD_ARRAYS not in content.array_records:
            content = RecordDict({**content, **pack_arrays(self.plan.order.arrays)})
        return OutgoingMessage(node, client, content, min(instruction.budget_s, timeout_s))

    def handle_reply(self, received: ReceivedReply) -> None:
        """Record a reply to this round, in time or after the quorum."""
        outcome = self.read_reply(received)
        if isinstance(outcome, FailedClient):
            self.missing[outcome.client] = outcome
            self.up_bytes += _array_bytes(received.message)
        elif not self._is_full:
            self.reports[outcome.client] = outcome
            self.metrics[outcome.client], sent_bytes = metrics_and_bytes(outcome, received)
            self.up_bytes += sent_bytes
        elif self.plan.late != "lost":
            self._host.late.add(outcome, self, received)
        else:
            self.missing[outcome.client] = FailedClient(
                outcome.client, "late", outcome.timings, outcome.summary.trained
            )
            self._host.speeds.add_measurement(outcome.client, outcome.summary.batch_s)
            self.up_bytes += _array_bytes(received.message)

    def read_reply(self, received: ReceivedReply) -> ClientReport | FailedClient:
        """Return the report in a reply, or log and return why there is none."""
        host, client, message, number = self._host, received.sent.client, received.message, self.plan.order.round
        if received.problem:
            return self._invalid(client, received.problem)
        if message.has_error():
            why = f"error {message.error.code}: {message.error.reason}"
            host.log_event("error", client=client, round=number, why=why)
            return FailedClient(client, "error", problem=shorten(why))
        try:
            expected = self._expected(client)
            report, measured = unpack(message, expected, received.seconds)
            if report is not None and expected.sums_only:
                self.keys[client] = read_keys(message.content)
        except InvalidMessage as problem:
            if isinstance(problem, UnannouncedSize):
                host.nodes.request_greeting(received.sent.node)
            return self._invalid(client, str(problem))
        except Exception as error:  # a failure to read one reply must not end the run
            return self._invalid(client, f"a reply that cannot be read: {type(error).__name__}: {error}")
        if (tags := read_tags(message.content.config_records[FEDBALANCER])) is not None:
            host.nodes.set_tags(client, tags)
        host.transport.add_order(client, received.seconds - measured.busy_s)
        if report is not None:
            host.nodes.resize(client, report.size)
            return report
        return self._without_report(received, measured)

    def _without_report(self, received: ReceivedReply, measured: ClientMeasurements) -> FailedClient:
        """Return why a valid reply has no report: the client declined, or stopped at the deadline."""
        host, client, message, number = self._host, received.sent.client, received.message, self.plan.order.round
        if measured.phase == DECLINED:
            host.log_event("declined", client=client, round=number, why=measured.declined)
            return FailedClient(client, DECLINED, problem=measured.declined)
        host.speeds.add_measurement(client, batch_s_of(message, received.seconds))
        host.log_event("stopped at the deadline", client=client, round=number)
        return FailedClient(client, measured.phase or "train", split_timings(measured, received.seconds))

    def _invalid(self, client: str, problem: str) -> FailedClient:
        """Log an invalid reply. The text is shortened because parts of it come from the client."""
        self._host.log_event("invalid", client=client, round=self.plan.order.round, why=problem)
        return FailedClient(client, INVALID, problem=shorten(problem))

    def result(self, seconds: float, window_s: float) -> RoundResult:
        """Close the round and return its result, sorted by client id.

        Args:
            seconds: Duration of the round.
            window_s: Seconds spent waiting for free clients before it.
        """
        full, late = self._is_full, self._host.late
        joining = late.take_joining(self.plan, len(self.reports)) if self.plan.late != "lost" else []
        for each in joining:
            self.metrics[each.report.client] = each.metrics
            self.up_bytes += each.up_bytes
        reports = [*self.reports.values(), *(each.with_staleness(self.plan.order.round) for each in joining)]
        under_way = self._close_late({report.client for report in reports}) if self.plan.late != "lost" else ()
        for client in self.plan.cohort:
            if client not in self.reports and client not in self.missing:
                # It may be killed, asleep or slow, so the phase is not known.
                self._mark_missing(client, "late" if full else SILENT, "no reply when the round closed")
        reports.sort(key=lambda report: report.client)
        decoded = self._decode_summaries(reports)
        missing = tuple(self.missing[client] for client in sorted(self.missing))
        order_bytes = sum(array.nbytes for array in self.plan.order.arrays.values())
        down_bytes = (self._host.layout.layout.wire_bytes + order_bytes) * len(self.plan.cohort)
        return RoundResult(
            self.plan, decoded, missing, seconds, window_s, down_bytes, self.up_bytes, under_way, validated=True
        )

    def _decode_summaries(self, reports: list[ClientReport]) -> tuple[ClientReport, ...]:
        """Add the statistics that the server computes from the summaries; drop reports whose summary is unreadable."""
        try:
            return self._decode(reports)
        except Exception:
            return self._decode([report for report in reports if self._is_decodable(report)])

    def _decode(self, reports: list[ClientReport]) -> tuple[ClientReport, ...]:
        return decode_summaries(reports, self._host.method.client, self.plan.order, self._size_of)

    def _is_decodable(self, report: ClientReport) -> bool:
        try:
            self._decode([report])
        except Exception as error:
            why = f"a summary that cannot be read: {type(error).__name__}: {error}"
            self.missing[report.client] = self._invalid(report.client, why)
            self.metrics.pop(report.client, None)
            return False
        return True

    def _close_late(self, reported: set[str]) -> tuple[str, ...]:
        """Return the clients that are still at work when the round closes; they are marked as missing."""
        ended, under_way = self._host.late.close_round(self, reported)
        self.missing |= ended
        for client in set(self.plan.cohort) & set(under_way):
            self.missing[client] = FailedClient(client, UNDER_WAY)
        return under_way

    def _expected(self, client: str) -> Expected:
        host, policies, layout = self._host, self._host.method.client, self._host.layout.layout
        part = make_part(policies.part, layout, client, self._ranks.get(client, 0.0), self.plan.order)
        return Expected(
            client, self._size_of(client), self.plan.order, self.weights, host.layout, policies.compress,
            policies.summary, host.nodes.most_samples, policies.train.up_arrays(layout),
            None if part is None else part.mask,
            part.batch_share if part is not None and policies.part.follows_shares else 1.0, host.sums is not None,
        )  # fmt: skip

    def _size_of(self, client: str) -> int:
        ledger = self._host.ledger
        return int(ledger.size[ledger.position[client]])

    def _mark_missing(self, client: str, reason: str, why: str) -> None:
        self.missing[client] = FailedClient(client, reason)
        self._host.log_event("missing", client=client, round=self.plan.order.round, why=why)


@dataclass(frozen=True, eq=False)
class LateReport:
    """A report that arrived after its round had closed.

    Args:
        report: The report.
        round: The round that it answers.
        metrics: The client's custom metrics.
        up_bytes: Uploaded bytes.
    """

    report: ClientReport
    round: int
    metrics: RecordDict
    up_bytes: int

    def with_staleness(self, round_number: int) -> ClientReport:
        """Return the report as it counts in a later round."""
        return replace(self.report, staleness=round_number - self.round)


class LateReports:
    """Late reports and the clients that still work on closed rounds, for methods that count late reports.

    Every such client either joins a later round with its report or is missing in one. Until then it gets no other
    order. Reports that have not joined a round are passed to `keep`, so that they survive a killed server.

    Args:
        mailbox: The engine's mailbox.
    """

    keep: Callable[[LateReport], None] | None = None

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._closed: dict[int, OpenRound] = {}
        self._under_way: set[str] = set()
        self.arrived: list[LateReport] = []
        self.ended: dict[str, FailedClient] = {}

    def handle_reply(self, received: ReceivedReply) -> bool:
        """Record a reply to a closed round; returns whether it will count."""
        closed = self._closed.get(received.sent.round)
        if closed is None:
            return False
        outcome = closed.read_reply(received)
        if isinstance(outcome, FailedClient):
            self.ended[outcome.client] = outcome
            return False
        self.add(outcome, closed, received)
        return True

    def add(self, report: ClientReport, of: OpenRound, received: ReceivedReply) -> None:
        """Keep a report whose round is full or closed."""
        late = LateReport(report, of.plan.order.round, *metrics_and_bytes(report, received))
        self.arrived.append(late)
        if self.keep is not None:
            self.keep(late)

    @property
    def waiting(self) -> set[str]:
        """Clients of closed rounds that have not answered."""
        return {sent.client for sent in self._mailbox.waiting(TRAIN) if sent.round in self._closed}

    @property
    def clients(self) -> set[str]:
        """Clients whose outcome has not been part of a round yet."""
        return {*(each.report.client for each in self.arrived), *self.ended}

    @property
    def pending(self) -> frozenset[str]:
        """Clients that were still at work when the last round closed."""
        return frozenset(self._under_way)

    @property
    def is_empty(self) -> bool:
        """Whether no client has a late report or works on one."""
        return not (self.arrived or self.ended or self.waiting)

    def take_joining(self, plan: RoundPlan, in_time: int) -> list[LateReport]:
        """Remove and return the reports that count in a round with `in_time` reports of its own.

        Under the rule `joins` these are all of earlier rounds, otherwise the first that the quorum has room for.
        """
        earlier = [each for each in self.arrived if each.round < plan.order.round]
        joins = earlier if plan.late == "joins" else self.arrived[: max(plan.quorum - in_time, 0)]
        self.arrived = [each for each in self.arrived if each not in joins]
        return joins

    def close_round(
        self, closing: OpenRound, reported: Iterable[str]
    ) -> tuple[dict[str, FailedClient], tuple[str, ...]]:
        """Add a round to the closed ones.

        Args:
            closing: The round.
            reported: Clients whose report counts in it.

        Returns:
            The clients that failed since the last round, and all clients that are still at work.
        """
        self._closed[closing.plan.order.round] = closing
        unanswered = {sent.round for sent in self._mailbox.waiting(TRAIN)}
        self._closed = {number: closed for number, closed in self._closed.items() if number in unanswered}
        still = {*self.waiting, *(each.report.client for each in self.arrived)}
        gone = self._under_way - still - set(reported) - set(self.ended)
        ended = self.ended | {client: FailedClient(client, SILENT) for client in gone}
        self._under_way, self.ended = still, {}
        return ended, tuple(sorted(still))


def rank_clients(ledger: Ledger) -> dict[str, float]:
    """Return the share of slower clients, by client id."""
    return dict(zip(ledger.clients, rank_speeds(ledger.batch_s).tolist(), strict=True))


def metrics_and_bytes(report: ClientReport, received: ReceivedReply) -> tuple[RecordDict, int]:
    """Return the custom metrics and the number of array bytes that came with a report."""
    custom = custom_metrics(received.message.content.metric_records[METRICS])
    metrics = RecordDict({METRICS: MetricRecord({WEIGHT: int(report.weight), **custom})})
    return metrics, _array_bytes(received.message)


def _array_bytes(message: Message) -> int:
    records = message.content.array_records.values() if message.has_content() else ()
    return sum(len(array.data) for record in records for array in record.values())
