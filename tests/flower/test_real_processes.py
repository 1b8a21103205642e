"""A SuperLink and three SuperNodes on loopback, as users have them: FedBalancer runs and learns."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.federation import Federation

APP = Path(__file__).parent / "app"
PATIENCE_S = 240.0


def run(tmp_path: Path, config: str, patience_s: float = PATIENCE_S, slow_s: float = 0.0) -> Path:
    """The run folder of a run on three SuperNodes, of which the last takes so much longer; it is done."""
    manifest = tmp_path / "runs" / "first" / "manifest.json"
    # A node's executor looks for work every second; for three nodes it may look more often, and the test is shorter.
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(3):
            environment = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            environment |= {"TINY_SLOW_S": str(slow_s)} if number == 2 else {}
            federation.supernode(f"node{number}", f"partition-id={number}", environment)
        federation.run(APP, "--run-config", f'folder="{tmp_path / "runs"}" key="first" {config}')
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if manifest.exists() and json.loads(manifest.read_text())["status"] != "running":
                break
            if not manifest.exists() and "Finished task" in federation.log("superlink"):  # it failed before its start
                break
            time.sleep(0.5)
        logs = "\n".join(federation.log(name)[-1500:] for name in ("superlink", "node0"))
    assert manifest.exists(), logs
    assert json.loads(manifest.read_text())["status"] == "done", json.loads(manifest.read_text())["why"]
    return manifest.parent


@pytest.mark.timeout(300)
def test_fedbalancer_on_three_supernodes(tmp_path: Path) -> None:
    folder = run(tmp_path, "rounds=3")
    rounds = pl.read_parquet(folder / "rounds.parquet")
    evals = pl.read_parquet(folder / "evals.parquet")
    assert rounds["round"].to_list() == [1, 2, 3]
    assert rounds["completed"].sum() >= 1
    assert evals["loss"][-1] < evals["loss"][0]
    assert any((tmp_path / f"client{number}").glob("*.safetensors") for number in range(3))


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_flwr_stop_leaves_a_stopped_run_with_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(3):
            memory = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            federation.supernode(f"node{number}", f"partition-id={number}", memory)
        federation.run(APP, "--run-config", f'folder="{tmp_path / "runs"}" key="first" rounds=1000')
        until = time.monotonic() + PATIENCE_S
        while not list(folder.glob("checkpoint/step-*")) and time.monotonic() < until:
            time.sleep(0.5)
        listed = flwr(federation, "ls", "--format", "json")
        flwr(federation, "stop", str(json.loads(listed)["runs"][0]["run-id"]))
        while status(folder) == "running" and time.monotonic() < until:
            time.sleep(0.5)
    assert status(folder) == "stopped"
    assert (folder / "model.safetensors").exists()


def flwr(federation: Federation, *arguments: str) -> str:
    done = subprocess.run(["flwr", *arguments], env=federation.environment, capture_output=True, text=True, check=True)
    return done.stdout


def status(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["status"])


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_late_reports_join_and_methods_of_ones_own_are_called(tmp_path: Path) -> None:
    """FedBuff, with a client that takes longer than the others, under a user's own strategy: so much that it comes
    after its own round on a busy machine, and before the last one on a quiet one, where a round takes five seconds."""
    folder = run(tmp_path, 'rounds=8 method="fedbuff" own=true', 1100.0, slow_s=20.0)
    rows = pl.read_parquet(folder / "clients.parquet")
    joined = rows.filter(pl.col("outcome") == "joined")
    assert len(joined), rows
    for (client,), own in rows.group_by("client"):
        under_way, came = ((own["outcome"] == what).sum() for what in ("under way", "joined"))
        assert came <= under_way, client
        assert own["round"].is_unique().all() or came, client
    called = [line.split() for line in (folder.parent / "called.txt").read_text().splitlines()]
    assert [int(round) for name, round, _ in called if name == "aggregate_train"] == list(range(1, 9))
    completed = pl.read_parquet(folder / "rounds.parquet")["completed"].to_list()
    assert [int(count) for name, _, count in called if name == "aggregate_train"] == completed
    evals = pl.read_parquet(folder / "evals.parquet")
    assert evals["loss"][-1] < evals["loss"][0]
