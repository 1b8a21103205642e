"""The clients without torch: in this process on a grid in memory, and (soak) by the commands of their READMEs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import Context, Message, RecordDict

from fedbalancer.client.live import WallClock
from fedbalancer.flower import Strategy
from fedbalancer.flower.grid_engine import Waiting

EXAMPLES = Path(__file__).parents[2] / "examples"
APPS = [("flower_numpy", "softmax", 0.75), ("flower_sklearn", "digits", 0.8)]


def node(app: Any, number: int) -> Any:
    """A client app on a node, which answers a second after it was asked."""
    context = make_context(number + 2, **{"partition-id": number})

    def handle(message: Message, sent_s: float) -> Any:
        return [(sent_s + 1.0, app(message, context))]

    return handle


@pytest.mark.parametrize(("folder", "package", "accuracy"), APPS)
def test_fedbalancer_learns_without_torch(
    folder: str, package: str, accuracy: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it is an error
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    client = importlib.import_module(f"{package}.client_app")
    server = importlib.import_module(f"{package}.server_app")
    clock = Clock()
    waiting = Waiting(clock=clock, sleep=clock.sleep, background=False)
    monkeypatch.setattr(WallClock, "now_s", lambda self: clock())  # clients too: a busy machine must not end a round
    monkeypatch.setattr(server, "Strategy", partial(Strategy, waiting=waiting))
    grid = FakeGrid(clock, {number + 2: node(client.app, number) for number in range(3)})
    config = {"rounds": 5, "folder": str(tmp_path), "key": "run"}
    server.app(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    evals = pl.read_parquet(tmp_path / "run" / "evals.parquet")
    assert evals["accuracy"][-1] > accuracy > evals["accuracy"][0]
    rows = pl.read_parquet(tmp_path / "run" / "clients.parquet")
    assert set(rows["outcome"]) == {"completed"}
    assert rows.filter(pl.col("round") == 5)["samples"].sum() <= rows.filter(pl.col("round") == 1)["samples"].sum()


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.parametrize(("folder", "package", "accuracy"), APPS)
def test_the_commands_of_the_readme(folder: str, package: str, accuracy: float, tmp_path: Path) -> None:
    text = (EXAMPLES / folder / "README.md").read_text()
    commands = text.split("```bash\n")[1].split("```")[0]
    script = "\n".join(line for line in commands.splitlines() if not line.startswith("pip install"))
    copytree(EXAMPLES / folder, tmp_path / "app", ignore=ignore_patterns("runs", "__pycache__"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path / "app", env={**os.environ, "PATH": path}, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / "app" / "runs" / package
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    assert pl.read_parquet(run / "evals.parquet")["accuracy"][-1] > accuracy
    assert (run / "report.html").exists()
