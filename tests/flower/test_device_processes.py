"""Three SuperNodes that cannot import torch nor TensorFlow train a model file, with real processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")

from fedbalancer.flower.federation import Federation, free_port

APP, FILE = Path(__file__).parent / "device", Path(__file__).parent.parent / "training" / "small.tflite"
PATIENCE_S = 900.0


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_devices_without_torch_take_part(tmp_path: Path) -> None:
    """GADGET_BIN may name the `bin` of another environment, such as one with only the device extra."""
    manifest, absent = tmp_path / "runs" / "device" / "manifest.json", tmp_path / "absent"
    for package in ("torch", "tensorflow"):
        (absent / package).mkdir(parents=True)
        (absent / package / "__init__.py").write_text("raise ImportError('not on this device')")
    other = os.environ.get("GADGET_BIN")
    device = {"PYTHONPATH": str(absent)} | ({"PATH": f"{other}{os.pathsep}{os.environ['PATH']}"} if other else {})
    with Federation(tmp_path / "federation", {"GADGET_FILE": str(FILE)}) as federation:
        federation.superlink()
        for number in range(3):
            own = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            config = f'partition-id={number} says="{tmp_path / f"said{number}"}"'
            command = [f"{other}/flower-supernode"] if other else ["flower-supernode"]
            federation.start(
                f"node{number}",
                [
                    *command,
                    "--insecure",
                    "--superlink",
                    federation.address,
                    "--port",
                    str(free_port()),
                    "--node-config",
                    config,
                ],
                own | device,
            )
        federation.run(APP, "--run-config", f'folder="{tmp_path / "runs"}" file="{FILE}" rounds=4')
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if manifest.exists() and json.loads(manifest.read_text())["status"] != "running":
                break
            time.sleep(0.5)
        logs = "\n".join(federation.log(name)[-1500:] for name in ("superlink", "node0"))
    assert manifest.exists(), logs
    assert json.loads(manifest.read_text())["status"] == "done", json.loads(manifest.read_text())["why"]
    assert {path.read_text() for path in tmp_path.glob("said*")} == {"loaded: []"}
    evals = pl.read_parquet(manifest.parent / "evals.parquet")
    assert pl.read_parquet(manifest.parent / "rounds.parquet")["completed"].sum() >= 4
    assert evals["accuracy"][-1] > evals["accuracy"][0]
