"""Metrics of a run by OpenTelemetry, with an endpoint that Prometheus scrapes.

The number of time series does not depend on the number of clients: no metric has a label per client.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import UNDER_WAY
from fedbalancer.store.rows import JOINED, LATE, ClientRow, PrivacyRow
from fedbalancer.store.tracking import Sink

HOST, PORT, MOST_PORT = "127.0.0.1", 9464, 65535
REPORTED = ("completed", JOINED)
"""Outcomes of clients whose report counts."""
REASONS = (
    "download", "forward", "train", "upload", "silent", LATE, UNDER_WAY, "unavailable", "error", "invalid", "declined",
)  # fmt: skip
"""Reasons for a missing report that are label values; every other reason is counted as `other`."""
PHASES = ("download_s", "forward_s", "train_s", "upload_s")
BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
"""Upper bounds of the buckets of all durations, in seconds."""
LATE_EVENTS = {"late reply": "no", "late report": "yes"}
"""Events of replies to closed rounds, and whether they count."""


class _Gauge:
    """The last value of a metric for every label value."""

    def __init__(self) -> None:
        self._values: dict[tuple[tuple[str, str], ...], float] = {}

    def set(self, value: float, **labels: str) -> None:
        self._values[tuple(labels.items())] = value

    def observe(self, options: Any) -> Iterator[Any]:
        """Yield the values, when they are scraped."""
        from opentelemetry.metrics import Observation

        for labels, value in list(self._values.items()):
            yield Observation(value, dict(labels))


class Telemetry(Sink):
    """Serves the metrics of a run at `http://HOST:PORT/metrics` until it ends.

    Args:
        where: `PORT` or `HOST:PORT`; port 0 for a free port. Default: port 9464 of the loopback interface.
        folder: The run folder; not used.

    Attributes:
        address: URL of the endpoint, once the run has started.

    Raises:
        BadSetting: The port is not a number from 0 to 65535.
    """

    def __init__(self, where: str | None, folder: Path | None) -> None:
        host, _, port = (where or str(PORT)).rpartition(":")
        if not port.isdecimal() or int(port) > MOST_PORT:
            raise BadSetting(f"prometheus:{where} must be prometheus:[HOST:]PORT, port 0 to {MOST_PORT}")
        self._host, self._port = host or HOST, int(port)
        self._best_accuracy = -math.inf
        self.address = ""

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import Histogram, MeterProvider
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
        from opentelemetry.sdk.resources import Resource
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        registry = CollectorRegistry()
        self._server, _ = start_http_server(self._port, self._host, registry)  # first: the port may be taken
        self.address = f"http://{self._host}:{self._server.server_port}/metrics"
        ProcessCollector(registry=registry)
        task = manifest.get("task")
        run = {
            "service.name": "fedbalancer", "task": str(task.get("name") if isinstance(task, Mapping) else task),
            "method": str(manifest.get("method")), "seed": str(manifest.get("seed")),
        }  # fmt: skip
        buckets = View(instrument_type=Histogram, aggregation=ExplicitBucketHistogramAggregation(BOUNDS_S))
        reader = PrometheusMetricReader(registry=registry, scope_info_enabled=False)
        self._provider = MeterProvider([reader], Resource(run), views=[buckets], shutdown_on_exit=False)
        self._make_instruments()

    def _make_instruments(self) -> None:
        meter = self._provider.get_meter("fedbalancer")

        def gauge(name: str, unit: str, meaning: str) -> _Gauge:
            # Observable: the value of a plain gauge is gone after the first scrape.
            value = _Gauge()
            meter.create_observable_gauge(f"fedbalancer.{name}", [value.observe], unit, meaning)
            return value

        def counter(name: str, unit: str, meaning: str) -> Any:
            return meter.create_counter(f"fedbalancer.{name}", unit, meaning)

        self._round = gauge("round", "", "last complete round")
        self._at = gauge("last_round_timestamp", "s", "time when the last round closed, or the run started")
        self._deadline = gauge("deadline", "s", "deadline of the last round")
        self._threshold = gauge("loss_threshold", "", "loss threshold of the last round")
        self._selected = gauge("selected_clients", "", "clients selected for the last round")
        self._completed = gauge("completed_clients", "", "clients whose report counted in the last round")
        self._accuracy = gauge("accuracy", "", "accuracy of the last evaluation")
        self._best = gauge("best_accuracy", "", "highest accuracy since the server started")
        self._loss = gauge("loss", "", "loss of the last evaluation")
        self._epsilon = gauge("epsilon", "", "largest privacy loss of a client")
        self._rounds = counter("rounds", "", "complete rounds")
        self._empty = counter("empty_rounds", "", "rounds without a report that counts")
        self._reports = counter("reports", "", "reports that counted")
        self._dropped = counter("dropped", "", "selected clients without a report that counts, by reason")
        self._late = counter("late_replies", "", "replies to closed rounds, by whether they count")
        self._bytes = counter("traffic", "By", "bytes sent to clients (down) and received from them (up)")
        self._duration = meter.create_histogram("fedbalancer.round_duration", "s", "duration of rounds")
        self._phase = meter.create_histogram("fedbalancer.phase_duration", "s", "time of a client in a phase")
        # Counters exist from the start, so that Prometheus sees their first increase.
        for each in (self._rounds, self._empty, self._reports):
            each.add(0)
        for reason in (*REASONS, "other"):
            self._dropped.add(0, {"reason": reason})
        for counts in LATE_EVENTS.values():
            self._late.add(0, {"counts": counts})
        self._round.set(0)
        self._at.set(time.time())

    def on_clients(self, rows: Sequence[ClientRow]) -> None:
        for row in rows:
            if row.outcome in REPORTED:
                self._reports.add(1)
            else:
                self._dropped.add(1, {"reason": row.outcome if row.outcome in REASONS else "other"})
            for phase in PHASES:
                if (seconds := getattr(row, phase)) > 0:
                    self._phase.record(seconds, {"phase": phase.removesuffix("_s")})

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._rounds.add(1)
        self._empty.add(int(row["completed"] == 0))
        self._bytes.add(row["down_bytes"], {"direction": "down"})
        self._bytes.add(row["up_bytes"], {"direction": "up"})
        self._duration.record(row["end_s"] - row["start_s"])
        self._deadline.set(row["deadline_s"])
        self._threshold.set(row["loss_threshold"])
        self._selected.set(row["selected"])
        self._completed.set(row["completed"])
        self._round.set(row["round"])
        self._at.set(time.time())

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        if math.isfinite(row["accuracy"]):
            self._best_accuracy = max(self._best_accuracy, row["accuracy"])
            self._accuracy.set(row["accuracy"])
            self._best.set(self._best_accuracy)
        if math.isfinite(row["loss"]):
            self._loss.set(row["loss"])

    def on_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        for name, scope in (("epsilon", "summary"), ("model_epsilon", "model"), ("whole_epsilon", "all")):
            known = [value for row in rows if (value := getattr(row, name)) is not None]
            if known:
                self._epsilon.set(max(known), scope=scope)

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        if event in LATE_EVENTS:
            self._late.add(1, {"counts": LATE_EVENTS[event]})

    def on_end(self, status: str) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._provider.shutdown()
