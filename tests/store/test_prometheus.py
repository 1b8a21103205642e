"""A real Prometheus scrapes a run: it has the metrics, evaluates the alerts, and answers the dashboard's queries."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra telemetry is not installed")

import fedbalancer as fb
from fedbalancer.store.telemetry import Telemetry

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 120.0


def ask(address: str, **query: str) -> Any:
    """The data of an answer of Prometheus' HTTP API; None while it is not there."""
    try:
        with urllib.request.urlopen(f"{address}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code != 503:
            raise AssertionError(error.read().decode()) from error
        return None


def wait_for(holds: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.2)
    return value


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run Prometheus with the configuration of deploy/, but for the address and the interval; the URL of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    assert "superlink:9464" in text
    assert "15s" in text
    (folder / "prometheus.yml").write_text(text.replace("superlink:9464", target).replace("15s", "300ms"))
    (folder / "alerts.yml").write_text((DEPLOY / "prometheus" / "alerts.yml").read_text())
    command = ["prometheus", f"--web.listen-address={listen}", f"--config.file={folder / 'prometheus.yml'}",
               f"--storage.tsdb.path={folder / 'data'}"]  # fmt: skip
    with open(folder / "prometheus.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{listen}/api/v1"
    finally:
        process.terminate()
        process.wait()


class Watched(Telemetry):
    """Ends only when Prometheus has answered everything."""

    def __init__(self, folder: Path) -> None:
        super().__init__("0", None)
        self.folder, self.answers, self.rules = folder, dict[str, Any](), list[Any]()

    def on_end(self, status: str) -> None:
        with prometheus(self.folder, self.address.split("/")[2]) as api:
            wait_for(lambda: ask(f"{api}/query", query="count_over_time(fedbalancer_round[1h]) > 3")["result"]
                     if ask(f"{api}/query", query="up") else None)  # fmt: skip
            dashboard = json.loads((DEPLOY / "grafana" / "fedbalancer.json").read_text())
            for panel in dashboard["panels"]:
                for each in panel.get("targets", []):
                    query = each["expr"].replace("$instance", ".*")
                    self.answers[query] = ask(f"{api}/query", query=query)["result"]
            self.answers["up"] = ask(f"{api}/query", query="up")["result"]
            self.rules = wait_for(lambda: evaluated(ask(f"{api}/rules")))
        super().on_end(status)


def evaluated(rules: Any) -> list[Any]:
    """The alert rules; nothing while one of them was not evaluated."""
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in found) else found


@pytest.mark.timeout(400)
def test_prometheus_scrapes_a_run_and_answers_every_query_of_the_dashboard(tmp_path: Path) -> None:
    if which("prometheus") is None:
        pytest.skip("needs Prometheus")
    sink = Watched(tmp_path)
    method = "fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=2,clip=5)]"
    result = fb.run(
        "synthetic", method=method, track=[sink], users=10, rounds=6, settings={"clients_per_round": 4, "w": 2}
    )
    assert result.status == "done"
    assert sink.answers["up"][0]["metric"]["job"] == "fedbalancer"
    assert float(sink.answers["up"][0]["value"][1]) == 1
    assert float(sink.answers['fedbalancer_round{instance=~".*"}'][0]["value"][1]) == 6
    assert [query for query, answer in sink.answers.items() if not answer] == []
    assert {rule["health"] for rule in sink.rules} == {"ok"}, sink.rules
    assert {rule["state"] for rule in sink.rules} <= {"inactive", "pending"}
