"""A run continues once its earlier server has ended; trackers and the dashboard follow a run."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.files import FolderLock
from fedbalancer.core.settings import Settings
from fedbalancer.experiments.tracking import Sink
from fedbalancer.flower import Strategy, recorder
from fedbalancer.flower.recorder import RunRecorder, make_manifest
from fedbalancer.methods.table import method
from fedbalancer.reporting.dashboard import open_dashboard
from fedbalancer.store.rows import ClientRow

MANIFEST = make_manifest("tiny", method("fedbalancer"), 0, Settings(), 3)


def test_a_new_server_waits_for_the_earlier_one(tmp_path: Path) -> None:
    RunRecorder(tmp_path / "run", MANIFEST).folder.close()
    earlier = FolderLock(tmp_path / "run")
    threading.Timer(0.7, earlier.release).start()
    again = RunRecorder(tmp_path / "run", MANIFEST)
    assert again.resumed
    again.folder.close()


def test_the_wait_for_an_earlier_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PREVIOUS_S", 0.3)
    earlier = RunRecorder(tmp_path / "run", MANIFEST)
    with pytest.raises(RunFolderError, match="another process"):
        RunRecorder(tmp_path / "run", MANIFEST)
    earlier.folder.close()


def test_a_damaged_folder_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunRecorder(tmp_path / "run", MANIFEST).folder.close()
    (tmp_path / "run" / "manifest.json").write_text("{")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(RunFolderError):
        RunRecorder(tmp_path / "run", MANIFEST)


class Everything(Sink):
    """Keeps all calls in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        self.calls.append(("start", manifest["engine"]))

    def on_clients(self, rows: Sequence[ClientRow]) -> None:
        self.calls.append(("clients", [row.outcome for row in rows]))

    def on_round(self, row: Mapping[str, Any]) -> None:
        self.calls.append(("round", row["round"]))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self.calls.append(("evaluation", row["round"]))

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        if event == "invalid":
            self.calls.append((event, fields["client"]))

    def on_model(self, model: Path) -> None:
        self.calls.append(("model", hashlib.sha256(model.read_bytes()).hexdigest()))

    def on_end(self, status: str) -> None:
        self.calls.append(("end", status))


class Unreachable(Sink):
    def on_round(self, row: Mapping[str, Any]) -> None:
        raise OSError("no network")


def broken(reply: Any) -> Any:
    reply.content.config_records["fedbalancer"]["round"] = 99
    return reply


def test_trackers_receive_a_run_on_flower_and_a_failing_one_does_not_change_it(tmp_path: Path) -> None:
    sink = Everything()
    World(Phone(0), Phone(1, change=broken)).start(
        2, "fedavg+wfa", track=[Unreachable(), sink, "tensorboard"], checkpoint_dir=tmp_path, run_key="mine",
        federated_evaluate=True,
    )  # fmt: skip
    run = tmp_path / "mine"
    digest = json.loads((run / "manifest.json").read_text())["files"]["model.safetensors"]
    outcomes = pl.read_parquet(run / "clients.parquet")["outcome"].to_list()
    assert sink.calls == [
        ("start", "flower"), ("evaluation", 0), ("invalid", "c1"), ("clients", outcomes[:2]), ("round", 1),
        ("evaluation", 1), ("clients", outcomes[2:]), ("round", 2), ("evaluation", 2), ("model", digest),
        ("end", "done"),
    ]  # fmt: skip
    assert outcomes[:2] == ["completed", "invalid"]
    failures = [line for line in (run / "log.jsonl").read_text().splitlines() if "sink failed" in line]
    assert len(failures) == 1
    assert "OSError: no network" in failures[0]
    (events,) = (run / "tensorboard").iterdir()
    assert b"rounds/accuracy" in events.read_bytes()


def test_mlflow_registers_the_model_with_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.chdir(tmp_path)
    where = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for _ in range(2):
        World(Phone(0)).start(1, "fedavg+wfa", track=[f"mlflow:{where}"], checkpoint_dir=tmp_path, run_key="mine")
    client = tracking.MlflowClient(tracking_uri=where)
    versions = client.search_model_versions("name = 'fedbalancer-flower'")
    digest = json.loads((tmp_path / "mine" / "manifest.json").read_text())["files"]["model.safetensors"]
    assert {int(version.version): version.tags["sha256"] for version in versions} == {1: digest, 2: digest}


def test_a_wrong_tracker_is_an_error_before_the_run() -> None:
    with pytest.raises(UnknownName, match="did you mean tensorboard"):
        Strategy(track=["tensorbord"])
    with pytest.raises(BadSetting, match="is not a tracker"):
        Strategy(track=[print])


def test_the_dashboard_shows_a_run_on_flower_while_it_runs(tmp_path: Path) -> None:
    pages: list[str] = []

    def evaluate(number: int, arrays: Any) -> None:
        if number == 2:
            with open_dashboard(tmp_path / "mine", "127.0.0.1", 0) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                with urllib.request.urlopen(server.address, timeout=20) as answer:
                    pages.append(answer.read().decode())
                server.shutdown()

    World(Phone(0)).start(2, "fedavg+wfa", evaluate_fn=evaluate, checkpoint_dir=tmp_path, run_key="mine")
    assert "fedavg+wfa" in pages[0]
