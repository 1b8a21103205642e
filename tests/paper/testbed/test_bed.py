"""A small bed of real processes: the folder is a comparison's, the twin is near, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from fedbalancer.paper.testbed.bed import run_bed
from fedbalancer.paper.testbed.plan import BedPlan
from fedbalancer.reporting.results import load

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="phones are forked")


def recorded(folder: Path) -> Path:
    """Phones that take long enough on the network for a busy machine."""
    phones = {
        str(n): {"per_batch_train_times": [0.02 * n, 0.025 * n], "networking_times": [30.0, 36.0 + n]}
        for n in (1, 2, 3)
    }
    file = folder / "phones.json"
    file.write_text(json.dumps({f"experiments_batch{n}": phones for n in (1, 2, 3)}))
    return file


def of_folder(folder: Path) -> list[str]:
    """Command lines of the processes that name this folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (process / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"FLWR_HOME={folder}" in environment:
                found.append(command)
    return found


@pytest.mark.timeout(600)
def test_two_methods_on_three_phones(tmp_path: Path) -> None:
    plan = BedPlan.make(
        tmp_path / "bed", recorded(tmp_path), methods=("fedbalancer", "fedavg+wfa"), clients=3, task="watch",
        scale="small", rounds=3, speed=20.0, overrides={"clients_per_round": 2, "eval_every": 1},
    )  # fmt: skip
    result = run_bed(plan)
    assert [method.method for method in result.comparison.methods] == ["fedbalancer", "fedavg+wfa"]
    results = load(tmp_path / "bed")
    assert {run.curve.status for run in results.runs} == {"done"}
    for method in plan.methods:
        run = plan.run_folder(method)
        rounds, clients = pl.read_parquet(run / "rounds.parquet"), pl.read_parquet(run / "clients.parquet")
        assert rounds["selected"].to_list() == [2] * len(rounds)
        done = clients.filter(pl.col("outcome") == "completed")
        assert len(done) > 0
        # The recorded seconds, to a tenth: the clock waits for a busy machine.
        assert 29.9 <= (done["download_s"] + done["upload_s"]).min() <= 30.1
        assert (done["download_s"] + done["upload_s"]).max() <= 39.1
        phones = pl.read_parquet(run / "phones.parquet")
        assert set(phones["client"]) <= set(plan.names)
        told = json.loads((run / "twin.json").read_text())
        assert told["agreement"] == result.twins[method].agreement
    waiting = result.twins["fedavg+wfa"]
    assert waiting.agreement == 1.0
    assert waiting.mean_error_share < 0.01
    for name in ("report.html", "table.md", "summary.json", "testbed.json", "figures/latency.png"):
        assert (tmp_path / "bed" / name).is_file()
    assert of_folder(tmp_path / "bed") == []


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_says_stopped(tmp_path: Path, number: int) -> None:
    out = tmp_path / "bed"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbalancer", "testbed", "--task", "watch", "--clients", "3", "--method", "fedavg+wfa",
         "--rounds", "500", "--speed", "20", "--phones", str(recorded(tmp_path)), "--out", str(out),
         "--set", "clients_per_round=2"],
        cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    rounds = out / "fedavg+wfa" / "seed-0" / "rounds.parquet"
    until = time.monotonic() + 120
    while time.monotonic() < until and not rounds.is_file():
        time.sleep(0.5)
    assert rounds.is_file()
    os.kill(process.pid, number)
    assert process.wait(60) == 130
    assert of_folder(out) == []
    assert json.loads((rounds.parent / "manifest.json").read_text())["status"] == "stopped"
