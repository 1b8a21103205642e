"""The metrics of a run, scraped over HTTP and read by Prometheus' own parser; the dashboard and the alerts use them."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra telemetry is not installed")

import yaml
from prometheus_client.parser import text_string_to_metric_families

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.store.telemetry import REASONS, Telemetry

DEPLOY = Path(__file__).parents[2] / "deploy"
SMALL: dict[str, Any] = {"users": 10, "rounds": 6, "settings": {"clients_per_round": 4, "w": 2}}
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(address: str) -> Samples:
    with urllib.request.urlopen(address, timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


class Scraped(Telemetry):
    """Scrapes itself after the last event of every round, as Prometheus would."""

    def __init__(self) -> None:
        super().__init__("0", None)
        self.scrapes: list[Samples] = []

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        super().on_evaluation(row)
        self.scrapes.append(scrape(self.address))

    def on_privacy(self, rows: Any) -> None:
        super().on_privacy(rows)
        self.scrapes += [scrape(self.address), scrape(self.address)]


@pytest.fixture(scope="module")
def private() -> tuple[Scraped, Any]:
    sink = Scraped()
    method = "fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=2,clip=5)]"
    return sink, fb.run("synthetic", method=method, track=[sink], **SMALL)


def test_a_scrape_has_the_figures_of_the_run(private: tuple[Scraped, Any]) -> None:
    sink, result = private
    last, row = sink.scrapes[-1], result.rounds.row(-1, named=True)
    value = {name: number for (name, labels), number in last.items() if not labels}
    assert value["fedbalancer_round"] == value["fedbalancer_rounds_total"] == 6
    assert value["fedbalancer_deadline_seconds"] == pytest.approx(row["deadline_s"])
    assert value["fedbalancer_loss_threshold"] == pytest.approx(row["loss_threshold"])
    assert value["fedbalancer_completed_clients"] == row["completed"]
    assert value["fedbalancer_reports_total"] == result.rounds["completed"].sum()
    assert value["fedbalancer_empty_rounds_total"] == (result.rounds["completed"] == 0).sum()
    assert value["fedbalancer_accuracy"] == pytest.approx(result.evals["accuracy"][-1])
    assert value["fedbalancer_best_accuracy"] == pytest.approx(result.evals["accuracy"].max())
    assert last["fedbalancer_traffic_bytes_total", (("direction", "down"),)] == result.rounds["down_bytes"].sum()
    assert last["fedbalancer_epsilon", (("scope", "summary"),)] == pytest.approx(result.privacy["epsilon"].max())
    outcomes = result.clients["outcome"].to_list()
    for reason in REASONS:
        assert last["fedbalancer_dropped_total", (("reason", reason),)] == outcomes.count(reason)
    times = {labels: number for (name, labels), number in last.items() if name.endswith("phase_duration_seconds_sum")}
    phases = {dict(labels)["phase"]: number for labels, number in times.items()}
    for phase, seconds in phases.items():
        assert seconds == pytest.approx(result.clients[f"{phase}_s"].sum())
    assert {"download", "train", "upload"} <= phases.keys()


def test_the_number_of_series_depends_neither_on_rounds_nor_on_clients(private: tuple[Scraped, Any]) -> None:
    sink, result = private
    assert sink.scrapes[2].keys() == sink.scrapes[-3].keys()
    assert sink.scrapes[-1].keys() - sink.scrapes[-3].keys() == {("fedbalancer_epsilon", (("scope", "summary"),))}
    assert sink.scrapes[-1].keys() == sink.scrapes[-2].keys(), "two scrapes in a round"
    names = set(result.clients["client"].to_list())
    assert not [labels for _, labels in sink.scrapes[-1] if names & {value for _, value in labels}]
    assert len(sink.scrapes[-1]) < 200


def test_the_endpoint_ends_with_the_run_and_listens_on_loopback_only(private: tuple[Scraped, Any]) -> None:
    address = private[0].address
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError):
        scrape(address)


def test_a_port_that_is_taken_disables_the_tracker(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = fb.run("synthetic", track=[f"prometheus:{port}"], out=tmp_path / "run", **SMALL)
    assert result.status == "done"
    assert '"sink": "prometheus' in (tmp_path / "run" / "log.jsonl").read_text()


def test_a_wrong_port_is_an_error() -> None:
    with pytest.raises(BadSetting, match="port 0 to 65535"):
        Telemetry("http", None)


def texts(value: Any, key: str) -> Iterator[str]:
    """Every text under this key."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key and isinstance(item, str):
                yield item
            else:
                yield from texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item, key)


def check_expressions(expressions: list[str], names: set[str], labels: set[str]) -> None:
    assert expressions
    for expression in expressions:
        used = set(re.findall(r"\b(?:fedbalancer|process)_\w+", expression))
        assert used, expression
        assert used <= names, (expression, used - names)
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        matched = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|=|!=)", expression))
        assert grouped | matched <= labels | {"instance", "le"}, expression
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_and_the_alerts_use_only_metrics_that_exist(private: tuple[Scraped, Any]) -> None:
    last = private[0].scrapes[-1]
    names, labels = {name for name, _ in last}, {label for _, pairs in last for label, _ in pairs}
    dashboard = json.loads((DEPLOY / "grafana" / "fedbalancer.json").read_text())
    check_expressions(list(texts(dashboard, "expr")), names, labels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    expressions = [rule["expr"] for rule in group["rules"] if not rule["expr"].startswith("up")]
    check_expressions(expressions, names, labels)
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in group["rules"])
