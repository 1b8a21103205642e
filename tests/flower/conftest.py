"""Flower's messages can only be made in a process that runs an app: here every test is one."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _app_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    identity = pytest.importorskip("flwr.supercore.task_identity", reason="flwr is not installed").TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)
    monkeypatch.setenv("FEDBALANCER_CLIENT_FOLDER", str(tmp_path / "clients"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
