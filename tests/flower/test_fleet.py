"""A fleet in real processes: tags, metrics, a killed SuperLink, automatic resubmission, a rollback and an export."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra telemetry is not installed")

from prometheus_client.parser import text_string_to_metric_families

from fedbalancer.flower.federation import Federation, free_port
from fedbalancer.flower.operate import checkpoint_rounds, run_status
from fedbalancer.flower.release import export_model, roll_back
from fedbalancer.flower.submit import Submitter

APP = Path(__file__).parent / "app"
PATIENCE_S = 500.0


def wait_for(holds: Callable[[], Any]) -> Any:
    """Wait until something holds; its value."""
    until = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.5)
    return value


def scrape(port: int) -> dict[str, float]:
    """The metrics without labels; nothing while there is no server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except OSError:
        return {}
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_a_fleet_survives_a_killed_superlink_and_returns_to_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbalancer.flower.federation.START_S", 200.0)
    monkeypatch.setattr("fedbalancer.flower.submit.COMMAND_S", 300.0)
    run, port = tmp_path / "runs" / "fleet", free_port()
    config = f'folder="{tmp_path / "runs"}" key="fleet" rounds=4 keep=6 track="prometheus:{port}" '
    config += "method=\"fedavg+wfa[clients=Tagged(exclude='old')]\" clients=2"
    lines: list[str] = []
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        superlink = ["--database", str(tmp_path / "superlink.db")]
        federation.superlink(*superlink)
        for number, tags in enumerate(("pixel", "pixel+canary", "old")):
            environment = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            federation.supernode(f"node{number}", f'partition-id={number} tags="{tags}"', environment)
        submitter = Submitter(
            APP, run, ["--run-config", config], poll_s=1.0, wait_s=1.0, say=lines.append,
            environment=federation.environment,
        )  # fmt: skip
        result: list[str] = []
        supervision = Thread(target=lambda: result.append(submitter.keep_running()), daemon=True)
        supervision.start()
        metrics = wait_for(lambda: (seen := scrape(port)).get("fedbalancer_round", 0) >= 1 and seen)
        assert metrics["fedbalancer_reports_total"] >= 1
        federation.stop("superlink", signal.SIGKILL)  # with its ServerApp
        before = max(checkpoint_rounds(run))
        assert before >= 1
        federation.superlink(*superlink)
        supervision.join(PATIENCE_S)
        assert result == ["done"], lines
        assert sum(line.startswith("submitted as run") for line in lines) >= 2
        rounds = pl.read_parquet(run / "rounds.parquet")
        assert rounds["round"].to_list() == [1, 2, 3, 4], "no round was lost"
        clients = set(pl.read_parquet(run / "clients.parquet")["client"].to_list())
        assert clients == {"client-0", "client-1"}, "the third has an excluded tag"
        assert run_status(run)["restarts"] >= 1
        exported = export_model(run, tmp_path / "model.safetensors", best=True)
        assert exported["manifest_sha256"] == json.loads((run / "manifest.json").read_text())["sha256"]
        roll_back(run, 2)
        assert run_status(run)["rounds_done"] == 2
        assert submitter.keep_running() == "done"
        assert pl.read_parquet(run / "rounds.parquet")["round"].to_list() == [1, 2, 3, 4]
