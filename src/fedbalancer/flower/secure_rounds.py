"""The secure sums of a run on Flower: which methods they work with, and the messages of a round's sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedbalancer.client.summary import Histogram, SecAggHistogram
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport, FailedClient, FloatArray
from fedbalancer.flower.compat import RecordDict
from fedbalancer.flower.events import shorten
from fedbalancer.flower.mailbox import OutgoingMessage, ReceivedReply
from fedbalancer.flower.secure import SOON_S, SUM, SecureAggregation, SumFailed, decode_sum, open_sum
from fedbalancer.methods.composition import Method
from fedbalancer.server.aggregate.mean import MeanAggregator

if TYPE_CHECKING:
    from fedbalancer.flower.grid_engine import GridEngine
    from fedbalancer.flower.open_round import OpenRound


def check_secure_method(method: Method, secure: SecureAggregation, clients_per_round: int) -> None:
    """Refuse methods whose server needs more than a sum.

    Args:
        method: The method.
        secure: Settings of secure aggregation.
        clients_per_round: Clients per round.

    Raises:
        BadSetting: The method needs more than a sum; the text says which policy needs what.
    """
    summary, aggregate = method.summary, method.aggregate
    reasons = {
        f"summary {type(summary).__name__} sends each client's statistics of losses; use secagg-histogram with noise, "
        "or +silent": not (summary.is_private and (isinstance(summary, SecAggHistogram) or (not summary.releases_numbers
                           and not summary.releases_losses))),
        f"aggregate {type(aggregate).__name__} needs each client's update, and the server sees only their sum": (
            not isinstance(aggregate, MeanAggregator) or aggregate.needs_norms
        ),
        f"late {type(method.late).__name__} counts reports that arrive after the round's sum": (
            method.late.rule() != "lost"
        ),
        f"compress {type(method.compress).__name__} sends updates that cannot be added": (
            not method.compress.is_identity
        ),
        f"train {type(method.train).__name__} and part {type(method.part).__name__} send more than one update of the "
        "whole model": not (method.train.is_plain and method.part.is_whole),
        f"clients_per_round = {clients_per_round} must be at least {secure.least} (least)": (
            clients_per_round < secure.least
        ),
    }  # fmt: skip
    for reason, applies in reasons.items():
        if applies:
            raise BadSetting(f"secure_aggregation does not work with method {method.name!r}: {reason}")


class SecureSums:
    """Opens the sum of every round of an engine.

    Args:
        engine: The engine.
        secure: Settings of secure aggregation.
    """

    def __init__(self, engine: GridEngine, secure: SecureAggregation) -> None:
        self._engine, self.secure = engine, secure
        self._answers: list[ReceivedReply] = []

    def handle_reply(self, received: ReceivedReply) -> None:
        """Record a reply to a message of a sum."""
        self._answers.append(received)

    def finish(self, current: OpenRound) -> None:
        """Replace the reports of a closed round by reports that each have the mean of all.

        Args:
            current: The round. Reports of clients that are not in the sum become failed clients.
        """
        engine, number = self._engine, current.plan.order.round
        reports, summary = current.reports, engine.method.summary
        bins = summary.bins if isinstance(summary, SecAggHistogram) else 0
        length = 1 + len(current.weights) + bins
        needed = self.secure.needed(len(reports), getattr(summary, "least", 0))
        members: tuple[str, ...] = ()
        mean, why = np.zeros(0), "not in the sum"
        counts: tuple[float, ...] = ()
        try:
            words, members = open_sum(
                {client: current.keys[client] for client in reports}, needed, engine.run_key, number, length,
                lambda stage, requests: self._ask(stage, requests, number),
            )  # fmt: skip
            bits = self.secure.bits(len(current.plan.cohort))
            count, total, sums = decode_sum(words, len(current.weights), bits)
            self._check_counts(sums, [reports[client].size for client in members])
            mean, counts = total / count, tuple(value / count for value in sums)
            engine.log_event("sum opened", round=number, clients=len(members), gone=len(reports) - len(members))
        except SumFailed as problem:
            members, why = (), str(problem)
            engine.log_event("sum failed", round=number, why=why)
        for client in sorted(set(reports) - set(members)):
            report = reports.pop(client)
            current.metrics.pop(client, None)
            current.missing[client] = FailedClient(
                client, "error", report.timings, problem=shorten(why or "not in the sum")
            )
        for client in members:
            reports[client] = _with_mean(reports[client], mean, counts)

    def _check_counts(self, sums: Sequence[float], sizes: Sequence[int | None]) -> None:
        """Refuse a sum of histograms that no honest clients can have."""
        summary = self._engine.method.summary
        if not isinstance(summary, SecAggHistogram):
            return
        noise = summary.deviation * math.sqrt(len(sizes))
        fault = Histogram(noise, summary.clip, summary.bins).fault(sums, sum(size or 0 for size in sizes))
        if fault:
            raise SumFailed(fault)

    def _ask(self, stage: str, requests: Mapping[str, RecordDict], number: int) -> dict[str, RecordDict]:
        """Send a request to every client, and return the replies.

        The wait ends when all have replied, or after twice the time of the first half of them.
        """
        engine, clock = self._engine, self._engine.waiting.clock
        nodes = engine.nodes.connected_clients()
        outgoing = [
            OutgoingMessage(nodes[client], client, content) for client, content in requests.items() if client in nodes
        ]
        self._answers = []
        sent = engine.mailbox.send(SUM, outgoing, number, self.secure.wait_s)
        began, limit_s = clock(), self.secure.wait_s
        while len(self._answers) < len(sent) and clock() - began < limit_s:
            engine.poll(limit_s)
            if 2 * len(self._answers) >= len(sent) and limit_s == self.secure.wait_s:
                limit_s = min(max(2 * (clock() - began), SOON_S), limit_s)
            if len(self._answers) < len(sent):
                engine.waiting.sleep(engine.waiting.poll_s)
        for received in self._answers:
            if received.message.has_error():
                engine.log_event("sum refused", client=received.sent.client, round=number, stage=stage,
                                 why=shorten(str(received.message.error.reason)))  # fmt: skip
        return {each.sent.client: each.message.content for each in self._answers if each.message.has_content()}


def _with_mean(report: ClientReport, mean: FloatArray, counts: tuple[float, ...]) -> ClientReport:
    update = mean.astype(np.float32)
    return replace(report, update=update, summary=replace(report.summary, released=counts))
