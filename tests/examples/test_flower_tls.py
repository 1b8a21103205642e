"""examples/flower by the commands of its README: real processes, TLS, registered keys, deadlines that hold."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns, which

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from fedbalancer.flower.federation import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
PORTS = ("9443", "9101", "9102", "9103")
SLACK_S = 1.0

STRANGER = """
fedbalancer flower keys stranger --nodes 1
flower-supernode --superlink 127.0.0.1:9443 --root-certificates keys/ca.crt --port {port} \\
    --auth-supernode-private-key stranger/node-1 --node-config 'person=4' > stranger.log 2>&1 &
"""


def readme() -> list[str]:
    """The blocks of commands, one a section."""
    return re.findall(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)


def script(rounds: int) -> str:
    """The README's commands; of them only the ports are changed, which may be taken, and the number of rounds. A node
    whose key nobody registered tries to take part, too."""
    blocks = readme()
    blocks.insert(3, STRANGER.format(port=free_port()))
    text = "\n".join(blocks).replace("flwr run .", f"flwr run . --run-config rounds={rounds}")
    for port in PORTS:
        text = text.replace(port, str(free_port()))
    return text


def run(folder: Path, rounds: int, timeout_s: float) -> str:
    """Run all that the README says in a copy of the example; what was printed."""
    copytree(EXAMPLE, folder, ignore=ignore_patterns("keys", "runs", "*.log", "__pycache__"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open(folder / "all.log", "wb") as log:
        shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script(rounds)],
            cwd=folder, env={**os.environ, "PATH": path}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    printed = (folder / "all.log").read_text(errors="replace")
    assert code == 0, printed[-4000:]
    return printed


def check(folder: Path, rounds: int) -> list[float]:
    """The promises of the example; the deadlines."""
    made = folder / "runs" / "gestures"
    assert json.loads((made / "manifest.json").read_text())["status"] == "done"
    events = [json.loads(line) for line in (made / "log.jsonl").read_text().splitlines()]
    deadline_s = {event["round"]: event["deadline_s"] for event in events if event["event"] == "round"}
    seconds = {event["round"]: event["seconds"] for event in events if event["event"] == "round closed"}
    assert sorted(seconds) == sorted(deadline_s) == list(range(1, rounds + 1))
    assert all(seconds[number] <= deadline_s[number] + SLACK_S for number in seconds)
    clients = pl.read_parquet(made / "clients.parquet")
    assert clients["client"].n_unique() == 3
    assert clients["client"].str.starts_with("node-").all()
    assert (clients["outcome"] == "completed").any()
    return [deadline_s[number] for number in sorted(deadline_s)]


@pytest.mark.skipif(which("bash") is None, reason="needs bash")
@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(280)
def test_two_rounds_by_the_readme(tmp_path: Path) -> None:
    folder = tmp_path / "flower"
    printed = run(folder, 2, 260)
    check(folder, 2)
    assert "2 of 2 deadlines held" in printed
    assert "client introduced" in (folder / "run.log").read_text()
    assert "Exit Code: 305" in (folder / "stranger.log").read_text()  # Flower's word for a node that may not connect
    assert oct((folder / "keys" / "node-1").stat().st_mode)[-3:] == "600"


@pytest.mark.soak
@pytest.mark.alone
def test_ten_rounds_by_the_readme(tmp_path: Path) -> None:
    folder = tmp_path / "flower"
    printed = run(folder, 10, 900)
    deadlines = check(folder, 10)
    assert "10 of 10 deadlines held" in printed
    assert len(set(deadlines)) > 1
    evals = pl.read_parquet(folder / "runs" / "gestures" / "evals.parquet")
    assert evals["accuracy"][-1] > evals["accuracy"][0]
