"""One round while it runs: what was sent, what came back, and who is missing and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbalancer.client.round import decode_summaries
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import UNDER_WAY, ClientReport, FailedClient, RoundPlan, RoundResult, Weights
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from fedbalancer.flower.events import line
from fedbalancer.flower.mailbox import OutgoingMessage, ReceivedReply
from fedbalancer.flower.messages import (
    ARRAYS,
    CONFIG,
    FEDBALANCER,
    METRICS,
    TRAIN,
    WEIGHT,
    Instruction,
    InvalidMessage,
    custom_metrics,
)
from fedbalancer.flower.reading import Expected, UnannouncedSize, batch_s_of, split_timings, unpack
from fedbalancer.server.suspensions import INVALID

if TYPE_CHECKING:
    from fedbalancer.flower.grid_engine import GridEngine
    from fedbalancer.flower.mailbox import Mailbox, ReceivedReply

SILENT = "silent"
"""Why a client is missing that has not answered when its round closes, or ever."""


@dataclass(frozen=True, eq=False)
class LateReport:
    """A report of `round` that has come, with the metrics of its client."""

    report: ClientReport
    round: int
    metrics: RecordDict
    up_bytes: int

    def joining(self, round: int) -> ClientReport:
        """The report as it counts in a later round."""
        return replace(self.report, staleness=round - self.round)


class LateReports:
    """Who is under way, and what has come of it. Every client that was leaves by one door: its report joins a round, or
    it is missing in one. Until then nobody asks it for anything else. A server that dies loses what had not joined."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._closed: dict[int, OpenRound] = {}
        self._under_way: set[str] = set()
        self.arrived: list[LateReport] = []
        self.ended: dict[str, FailedClient] = {}

    def take(self, received: ReceivedReply) -> bool:
        """A reply to a closed round; whether it will count."""
        closed = self._closed.get(received.sent.round)
        if closed is None:
            return False
        found = closed.read(received)
        if isinstance(found, FailedClient):
            self.ended[found.client] = found
            return False
        self.keep(found, closed, received)
        return True

    def keep(self, report: ClientReport, of: OpenRound, received: ReceivedReply) -> None:
        """A report for which there was no room in its round, or whose round is over."""
        self.arrived.append(LateReport(report, of.plan.order.round, *of.extras_of(report, received)))

    @property
    def waiting(self) -> set[str]:
        """Clients of closed rounds that have yet to answer."""
        return {sent.client for sent in self._mailbox.waiting(TRAIN) if sent.round in self._closed}

    @property
    def clients(self) -> set[str]:
        """Who cannot be asked before a round has heard of what it did."""
        return {*(each.report.client for each in self.arrived), *self.ended}

    @property
    def is_empty(self) -> bool:
        return not (self.arrived or self.ended or self.waiting)

    def joining(self, plan: RoundPlan, in_time: int) -> list[LateReport]:
        """Those that count in a round which has so many reports of its own: all of earlier rounds, or as many of the
        first as its quorum leaves."""
        earlier = [each for each in self.arrived if each.round < plan.order.round]
        joins = earlier if plan.late == "joins" else self.arrived[: max(plan.quorum - in_time, 0)]
        self.arrived = [each for each in self.arrived if each not in joins]
        return joins

    def closes(self, round: OpenRound, heard: Iterable[str]) -> tuple[dict[str, FailedClient], tuple[str, ...]]:
        """A round closes in which these clients were heard of: who came to nothing since the last, and who of all is
        still under way."""
        self._closed[round.plan.order.round] = round
        open_rounds = {sent.round for sent in self._mailbox.waiting(TRAIN)}
        self._closed = {number: kept for number, kept in self._closed.items() if number in open_rounds}
        still = {*self.waiting, *(each.report.client for each in self.arrived)}
        gone = self._under_way - still - set(heard) - set(self.ended)
        ended = self.ended | {client: FailedClient(client, SILENT) for client in gone}
        self._under_way, self.ended = still, {}
        return ended, tuple(sorted(still))


class OpenRound:
    """One round while it runs."""

    def __init__(self, engine: GridEngine, plan: RoundPlan, weights: Weights) -> None:
        self.engine, self.plan, self.weights = engine, plan, weights
        self.reports: dict[str, ClientReport] = {}
        self.missing: dict[str, FailedClient] = {}
        self.metrics: dict[str, RecordDict] = {}
        self.up_bytes = 0

    @property
    def is_over(self) -> bool:
        answered, late = len(self.reports) + len(self.missing) >= len(self.plan.cohort), self.engine.late
        waits_for_others = self.plan.late == "counts" or (self.plan.late == "joins" and not self.plan.cohort)
        return self._is_full or (answered and not (waits_for_others and late.waiting))

    @property
    def _is_full(self) -> bool:
        """Whether it has the reports that it closes with: of its own cohort, or of whoever's."""
        if self.plan.late == "counts":
            return len(self.reports) + len(self.engine.late.arrived) >= self.plan.quorum
        if self.plan.late == "joins" and not self.plan.cohort:  # nobody is left to ask: the next that comes is enough
            return bool(self.engine.late.arrived)
        return len(self.reports) >= self.plan.quorum

    def messages(self, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """One message per client that is there; the weights are one object that Flower uploads once."""
        there = self.engine.nodes.connected_clients()
        return [
            Message(RecordDict({ARRAYS: arrays, CONFIG: config, FEDBALANCER: self._told(client).record()}), node, TRAIN)
            for client, node in there.items()
            if client in self.plan.cohort
        ]

    def send(self, ttl_s: float) -> None:
        """Write to everybody in the round."""
        engine, number = self.engine, self.plan.order.round
        arrays, config = engine.layout.record(self.weights), engine.train_config
        config["server-round"] = number
        if engine.configure_train is None:
            messages: Iterable[Message] = self.messages(arrays, config)
        else:
            messages = engine.configure_train(number, arrays, config, engine.grid)
        letters = [self._letter(message, arrays) for message in messages]
        went = {sent.client for sent in engine.mailbox.send(TRAIN, letters, number, ttl_s)}
        for client in self.plan.cohort:
            if client not in went:
                gone = client not in engine.nodes.connected_clients()
                why = "its node is gone" if gone else "nothing was sent to it"
                self._miss(client, "unavailable", why)

    def _told(self, client: str) -> Instruction:
        return self.engine.instruction(self.plan, client)

    def _letter(self, message: Message, arrays: ArrayRecord) -> OutgoingMessage:
        """What is sent of a message of `configure_train`, which may be a user's own."""
        node, kind, content = message.metadata.dst_node_id, message.metadata.message_type, message.content
        client = next((name for name, at in self.engine.nodes.connected_clients().items() if at == node), "")
        if kind != TRAIN or client not in self.plan.cohort:
            raise BadSetting(f"configure_train made a message of type {kind!r} for node {node}; it must be of type "
                             f"{TRAIN!r}, for a client of the round: clients are chosen by the method")  # fmt: skip
        sent = content.array_records.get(ARRAYS)
        if sent is not arrays and sent != arrays:
            raise BadSetting(f"configure_train changed the model for client {client!r}; updates are relative to it")
        told = self._told(client)
        if FEDBALANCER not in content.config_records:
            content = RecordDict({**content, FEDBALANCER: told.record()})
        return OutgoingMessage(node, client, content, min(told.budget_s, self.engine.waiting.timeout_s))

    def take(self, received: ReceivedReply) -> None:
        """A reply of this round."""
        found = self.read(received)
        if isinstance(found, FailedClient):
            self.missing[found.client] = found
            self.up_bytes += _bytes(received.message)
        elif not self._is_full:
            self.reports[found.client] = found
            self.metrics[found.client], sent_bytes = self.extras_of(found, received)
            self.up_bytes += sent_bytes
        elif self.plan.late != "lost":
            self.engine.late.keep(found, self, received)
        else:
            self.missing[found.client] = FailedClient(found.client, "late", found.timings, found.summary.trained)
            self.engine.speeds.add_measurement(found.client, found.summary.batch_s)
            self.up_bytes += _bytes(received.message)

    def read(self, received: ReceivedReply) -> ClientReport | FailedClient:
        """The report in a reply, or why there is none, which is also said."""
        client, message, number = received.sent.client, received.message, self.plan.order.round
        if received.problem:
            return self._invalid(client, received.problem)
        if message.has_error():
            why = f"error {message.error.code}: {message.error.reason}"
            self.engine.log_event("error", client=client, round=number, why=why)
            return FailedClient(client, "error", problem=line(why))
        try:
            report, measured = unpack(message, self._expected(client), received.seconds)
        except InvalidMessage as problem:
            if isinstance(problem, UnannouncedSize):
                self.engine.nodes.request_greeting(received.sent.node)
            return self._invalid(client, str(problem))
        except Exception as error:  # a reader that fails on one client's reply must not end the run of all
            return self._invalid(client, f"a reply that cannot be read: {type(error).__name__}: {error}")
        self.engine.transport.add_order(client, received.seconds - measured.busy_s)
        if report is not None:
            self.engine.nodes.resize(client, report.size)
            return report
        self.engine.speeds.add_measurement(client, batch_s_of(message, received.seconds))
        self.engine.log_event("stopped at the deadline", client=client, round=number)
        return FailedClient(client, measured.phase or "train", split_timings(measured, received.seconds))

    def _invalid(self, client: str, problem: str) -> FailedClient:
        """A reply that breaks the rules. Its text is shortened: some of it comes from the client."""
        self.engine.log_event("invalid", client=client, round=self.plan.order.round, why=problem)
        return FailedClient(client, INVALID, problem=line(problem))

    def extras_of(self, report: ClientReport, received: ReceivedReply) -> tuple[RecordDict, int]:
        """What came with a report: its client's own metrics, and how many bytes all of it had."""
        own = custom_metrics(received.message.content.metric_records[METRICS])
        metrics = RecordDict({METRICS: MetricRecord({WEIGHT: int(report.weight), **own})})
        return metrics, _bytes(received.message)

    def result(self, seconds: float, window_s: float) -> RoundResult:
        """What the server is told, in order of client id."""
        full, late = self._is_full, self.engine.late
        stale = late.joining(self.plan, len(self.reports)) if self.plan.late != "lost" else []
        for each in stale:
            self.metrics[each.report.client] = each.metrics
            self.up_bytes += each.up_bytes
        arrived = [*self.reports.values(), *(each.joining(self.plan.order.round) for each in stale)]
        under_way = self._closed({report.client for report in arrived}) if self.plan.late != "lost" else ()
        for client in self.plan.cohort:
            if client not in self.reports and client not in self.missing:
                # Killed, asleep or slow: nobody knows, so it is not said to be late in training.
                self._miss(client, "late" if full else SILENT, "no reply when the round closed")
        arrived.sort(key=lambda report: report.client)
        reports = self._summarised(arrived)
        missing = tuple(self.missing[client] for client in sorted(self.missing))
        down_bytes = self.engine.layout.layout.wire_bytes * len(self.plan.cohort)
        return RoundResult(
            self.plan, reports, missing, seconds, window_s, down_bytes, self.up_bytes, under_way, validated=True
        )

    def _summarised(self, reports: list[ClientReport]) -> tuple[ClientReport, ...]:
        """The reports with the statistics that the server reads from their summaries. Where that fails, those whose
        own summary is the cause are left out."""
        try:
            return self._understood(reports)
        except Exception:
            return self._understood([report for report in reports if self._has_summary(report)])

    def _understood(self, reports: list[ClientReport]) -> tuple[ClientReport, ...]:
        return decode_summaries(reports, self.engine.method.client, self.plan.order, self._size_of)

    def _has_summary(self, report: ClientReport) -> bool:
        try:
            self._understood([report])
        except Exception as error:
            why = f"a summary that cannot be read: {type(error).__name__}: {error}"
            self.missing[report.client] = self._invalid(report.client, why)
            self.metrics.pop(report.client, None)
            return False
        return True

    def _closed(self, heard: set[str]) -> tuple[str, ...]:
        """Who is under way when a round closes whose late reports will count; they are missing in it so far."""
        ended, under_way = self.engine.late.closes(self, heard)
        self.missing |= ended
        for client in set(self.plan.cohort) & set(under_way):
            self.missing[client] = FailedClient(client, UNDER_WAY)
        return under_way

    def _expected(self, client: str) -> Expected:
        engine = self.engine
        ours = engine.method.client
        return Expected(
            client, self._size_of(client), self.plan.order, self.weights, engine.layout, ours.compress, ours.summary,
            engine.nodes.most_samples,
        )  # fmt: skip

    def _size_of(self, client: str) -> int:
        known = self.engine.known
        return int(known.size[known.position[client]])

    def _miss(self, client: str, why: str, text: str) -> None:
        self.missing[client] = FailedClient(client, why)
        self.engine.log_event("missing", client=client, round=self.plan.order.round, why=text)


def _bytes(message: Message) -> int:
    records = message.content.array_records.values() if message.has_content() else ()
    return sum(len(array.data) for record in records for array in record.values())
