"""One round while it runs: what was sent, what came back, and who is missing and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbalancer.client.round import understood
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fedbalancer.flower.layout import Faulty
from fedbalancer.flower.mailbox import Arrival, Letter
from fedbalancer.flower.orders import ARRAYS, CONFIG, METRICS, OURS, TRAIN
from fedbalancer.flower.reading import Expected, batch_s_of, split_timings, unpack
from fedbalancer.flower.replies import WEIGHT, own_metrics
from fedbalancer.server.bench import INVALID
from fedbalancer.types import ClientReport, Missing, RoundPlan, RoundResult, Weights

if TYPE_CHECKING:
    from fedbalancer.flower.grid_engine import GridEngine


SILENT = "silent"
"""Why a client is missing that has not answered when its round closes."""


class OpenRound:
    """One round while it runs."""

    def __init__(self, engine: GridEngine, plan: RoundPlan, weights: Weights) -> None:
        self.engine, self.plan, self.weights = engine, plan, weights
        self.reports: dict[str, ClientReport] = {}
        self.missing: dict[str, Missing] = {}
        self.metrics: dict[str, RecordDict] = {}
        self.up_bytes = 0

    @property
    def is_over(self) -> bool:
        return len(self.reports) >= self.plan.quorum or len(self.reports) + len(self.missing) >= len(self.plan.cohort)

    def send(self, ttl_s: float) -> None:
        """One message per client; the weights are one object that Flower uploads once."""
        engine = self.engine
        arrays = engine.layout.record(self.weights)
        there = engine.nodes.present()
        config = ConfigRecord({"server-round": self.plan.order.round, **engine.train_config})
        letters = [
            self._letter(there[client], client, arrays, config) for client in self.plan.cohort if client in there
        ]
        went = {sent.client for sent in engine.mailbox.send(TRAIN, letters, self.plan.order.round, ttl_s)}
        for client in self.plan.cohort:
            if client not in went:
                self._miss(client, "unavailable", "its node is gone")

    def _letter(self, node: int, client: str, arrays: ArrayRecord, config: ConfigRecord) -> Letter:
        told = self.engine.instruction(self.plan, client)
        content = RecordDict({ARRAYS: arrays, CONFIG: config, OURS: told.record()})
        return Letter(node, client, content, min(told.budget_s, self.engine.waiting.timeout_s))

    def take(self, arrival: Arrival) -> None:
        """A reply of this round."""
        client, message = arrival.sent.client, arrival.message
        if message.has_error():
            self._miss(client, "error", f"error {message.error.code}: {message.error.reason}", "error")
            return
        self.up_bytes += _bytes(message.content)
        try:
            report, measured = unpack(message, self._expected(client), arrival.seconds)
        except Faulty as problem:
            self._miss(client, INVALID, str(problem), "invalid", str(problem))
            return
        self.engine.overheads.measured(client, arrival.seconds - measured.busy_s)
        if report is None:
            timings = split_timings(measured, arrival.seconds)
            self.missing[client] = Missing(client, measured.phase or "train", timings)
            self.engine.speeds.heard(client, batch_s_of(message, arrival.seconds))
            self.engine.say("stopped at the deadline", client=client, round=self.plan.order.round)
        elif len(self.reports) < self.plan.quorum:
            self.reports[client] = report
            own = own_metrics(message.content.metric_records[METRICS])
            self.metrics[client] = RecordDict({METRICS: MetricRecord({WEIGHT: report.summary.trained, **own})})
        else:
            self.missing[client] = Missing(client, "late", report.timings, report.summary.trained)
            self.engine.speeds.heard(client, report.summary.batch_s)

    def result(self, seconds: float, window_s: float) -> RoundResult:
        """What the server is told, in order of client id."""
        full = len(self.reports) >= self.plan.quorum
        for client in self.plan.cohort:
            if client not in self.reports and client not in self.missing:
                # Killed, asleep or slow: nobody knows, so it is not said to be late in training.
                self._miss(client, "late" if full else SILENT, "no reply when the round closed")
        arrived = [self.reports[client] for client in sorted(self.reports)]
        reports = understood(arrived, self.engine.method.client.summary, self.plan.order)
        missing = tuple(self.missing[client] for client in sorted(self.missing))
        down_bytes = self.engine.layout.layout.wire_bytes * len(self.plan.cohort)
        return RoundResult(self.plan, reports, missing, seconds, window_s, down_bytes, self.up_bytes)

    def _expected(self, client: str) -> Expected:
        engine = self.engine
        size = int(engine.known.size[engine.known.position[client]])
        ours = engine.method.client
        return Expected(client, size, self.plan.order, self.weights, engine.layout, ours.compress, ours.summary)

    def _miss(self, client: str, why: str, text: str, event: str = "missing", problem: str = "") -> None:
        self.missing[client] = Missing(client, why, problem=problem)
        self.engine.say(event, client=client, round=self.plan.order.round, why=text)


def _bytes(content: RecordDict) -> int:
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
