"""Five hundred rounds on five SuperNodes: no round is lost, and memory and disk stay within stated bounds."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra telemetry is not installed")

from prometheus_client.parser import text_string_to_metric_families

from fedbalancer.flower.federation import Federation, free_port
from fedbalancer.flower.operate import checkpoint_rounds, run_status

APP = Path(__file__).parent / "app"
NODE = Path(__file__).parent / "quick_node.py"
ROUNDS, NODES, PER_ROUND, KEEP = int(os.environ.get("ROUNDS", "500")), 5, 3, 3
WARM = 0.2
"""Share of the rounds after which memory must not grow any more."""
SERVER_MB, SUPERLINK_MB, NODE_MB = 10.0, 20.0, 10.0
"""Largest growth of the ServerApp, of Flower's SuperLink and of a SuperNode after the warm rounds."""
ROUND_BYTES = 3_000
"""Largest growth of the run folder per round of three clients; the log is most of it."""
EMPTY = 0.01
"""Largest share of rounds without a report; a machine that is too busy has some."""
PATIENCE_S = 7200.0


def tree_bytes(folder: Path) -> int:
    """Bytes of all files; files and folders that are being replaced are left out."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def resident_mb(pid: int) -> float:
    """Resident memory of a process, without the processes that it started."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def scrape(port: int) -> dict[str, float]:
    """The metrics without labels; nothing while there is no server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except OSError:
        return {}
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def series(port: int) -> int:
    """Number of series of the metrics; 0 if the server has just ended."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return sum(not line.startswith(b"#") for line in answer)
    return 0


def is_running(run: Path) -> bool:
    try:
        return bool(json.loads((run / "manifest.json").read_text())["status"] == "running")
    except OSError:
        return True


def watch(federation: Federation, run: Path, port: int, database: Path) -> Iterator[dict[str, Any]]:
    """Measure about every fiftieth of the rounds until the run ends."""
    until, last, step = time.monotonic() + PATIENCE_S, 0, max(ROUNDS // 50, 1)
    while is_running(run):
        assert time.monotonic() < until, federation.log("superlink")[-2000:]
        metrics = scrape(port)
        done = int(metrics.get("fedbalancer_round", 0))
        if done >= last + step:
            last = done
            yield {
                "round": done, "time": time.time(), "server_mb": metrics["process_resident_memory_bytes"] / 1e6,
                "superlink_mb": resident_mb(federation.processes["superlink"].pid),
                "node_mb": max(resident_mb(federation.processes[f"node{each}"].pid) for each in range(NODES)),
                "folder_bytes": tree_bytes(run), "clients_bytes": tree_bytes(run.parent.parent / "clients"),
                "database_bytes": sum(path.stat().st_size for path in database.parent.glob(f"{database.name}*")),
                "checkpoints": len(checkpoint_rounds(run)), "series": series(port),
            }  # fmt: skip
        time.sleep(1.0)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(int(PATIENCE_S) + 300)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc to ask")
def test_five_hundred_rounds_on_five_supernodes_lose_none_and_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbalancer.flower.federation.START_S", 200.0)
    run, port, database = tmp_path / "runs" / "long", free_port(), tmp_path / "superlink.db"
    config = (
        f'folder="{run.parent}" key="long" rounds={ROUNDS} clients={PER_ROUND} keep={KEEP} track="prometheus:{port}"'
    )
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}) as federation:
        federation.superlink("--database", str(database))
        for number in range(NODES):
            command = [sys.executable, str(NODE), "--insecure", "--superlink", federation.address, "--port",
                       str(free_port()), "--node-config", f"partition-id={number}"]  # fmt: skip
            memory = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / "clients" / str(number))}
            federation.start(f"node{number}", command, memory)
        federation.run(APP, "--run-config", config)
        seen = []
        for each in watch(federation, run, port, database):
            seen.append(each)
            (tmp_path / "seen.json").write_text(json.dumps(seen))
    check_rounds(run)
    check_growth(seen)


def check_rounds(run: Path) -> None:
    """No round is lost: every one is in the tables, and reports counted in nearly all."""
    status = run_status(run, ROUNDS)
    assert status["status"] == "done", status
    assert status["restarts"] == 0
    rounds = pl.read_parquet(run / "rounds.parquet")
    assert rounds["round"].to_list() == list(range(1, ROUNDS + 1))
    assert (rounds["completed"] == 0).sum() <= EMPTY * ROUNDS, "rounds without a report"
    assert len(checkpoint_rounds(run)) in (KEEP, KEEP + 1), "the last ones, and the best"
    clients = pl.read_parquet(run / "clients.parquet")
    assert clients["client"].n_unique() == NODES
    evals = pl.read_parquet(run / "evals.parquet")
    assert evals["loss"][-1] < evals["loss"][0]


def check_growth(seen: list[dict[str, Any]]) -> None:
    """Memory stays flat after the first rounds, and the disk grows by a bounded number of bytes per round."""
    warm = [each for each in seen if each["round"] >= WARM * ROUNDS]
    assert len(warm) >= 5, seen
    first, last = warm[0], warm[-1]
    grown = {name: last[name] - first[name] for name in ("server_mb", "superlink_mb", "node_mb")}
    assert grown["server_mb"] < SERVER_MB, grown
    assert grown["superlink_mb"] < SUPERLINK_MB, grown
    assert grown["node_mb"] < NODE_MB, grown
    per_round = (last["folder_bytes"] - first["folder_bytes"]) / (last["round"] - first["round"])
    assert per_round < ROUND_BYTES, per_round
    assert last["clients_bytes"] <= 2 * first["clients_bytes"], "a file per client, which does not grow"
    # The last ones, the best, and one that is about to be removed, because its successor has just been written.
    assert {each["checkpoints"] for each in warm} <= {KEEP, KEEP + 1, KEEP + 2}
    assert len({each["series"] for each in warm if each["series"]}) == 1, "metrics do not grow with rounds"
