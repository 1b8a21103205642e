"""A SuperLink and three SuperNodes on loopback, as users have them: FedBalancer runs and learns."""

from __future__ import annotations

import json
import time
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.local import Federation

APP = Path(__file__).parent / "app"
PATIENCE_S = 240.0


@pytest.mark.timeout(300)
def test_fedbalancer_on_three_supernodes(tmp_path: Path) -> None:
    manifest = tmp_path / "runs" / "first" / "manifest.json"
    # A node's executor looks for work every second; for three nodes it may look more often, and the test is shorter.
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(3):
            folder = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            federation.supernode(f"node{number}", f"partition-id={number}", folder)
        federation.run(APP, "--run-config", f'folder="{tmp_path / "runs"}" key="first" rounds=3')
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if manifest.exists() and json.loads(manifest.read_text())["status"] != "running":
                break
            time.sleep(0.5)
        logs = "\n".join(federation.log(name)[-1500:] for name in ("superlink", "node0"))
    assert manifest.exists(), logs
    assert json.loads(manifest.read_text())["status"] == "done", json.loads(manifest.read_text())["why"]
    rounds = pl.read_parquet(manifest.parent / "rounds.parquet")
    evals = pl.read_parquet(manifest.parent / "evals.parquet")
    assert rounds["round"].to_list() == [1, 2, 3]
    assert rounds["completed"].sum() >= 1
    assert evals["loss"][-1] < evals["loss"][0]
    assert any((tmp_path / f"client{number}").glob("*.safetensors") for number in range(3))
