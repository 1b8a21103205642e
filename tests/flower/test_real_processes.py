"""A SuperLink and three SuperNodes on loopback, as users have them: FedBalancer runs and learns."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is not installed")

import fedbalancer as fb
from fedbalancer.flower.federation import Federation

APP = Path(__file__).parent / "app"
TESTS = Path(__file__).parents[1]
PATIENCE_S = 240.0


def run(
    tmp_path: Path, config: str, patience_s: float = PATIENCE_S, slow_s: float = 0.0, nodes: int = 3, attack: str = ""
) -> Path:
    """The run folder of a run on SuperNodes, of which the last takes so much longer and may attack; it is done."""
    manifest = tmp_path / "runs" / "first" / "manifest.json"
    # A node's executor looks for work every second; for three nodes it may look more often, and the test is shorter.
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(nodes):
            environment = {"FEDBALANCER_CLIENT_FOLDER": str(tmp_path / f"client{number}")}
            environment |= {"TINY_SLOW_S": str(slow_s), "TINY_ATTACK": attack} if number == nodes - 1 else {}
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


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_fedbalancer_on_three_supernodes(tmp_path: Path) -> None:
    """In the quick tests: an app that trains on two SuperNodes (cli/test_flower.py), and faults on three."""
    folder = run(tmp_path, "rounds=3")
    rounds = pl.read_parquet(folder / "rounds.parquet")
    evals = pl.read_parquet(folder / "evals.parquet")
    assert rounds["round"].to_list() == [1, 2, 3]
    assert rounds["completed"].sum() >= 1
    assert evals["loss"][-1] < evals["loss"][0]
    assert any((tmp_path / f"client{number}").glob("*.safetensors") for number in range(3))


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_secure_aggregation_on_three_supernodes(tmp_path: Path) -> None:
    folder = run(tmp_path, 'rounds=3 method="fedavg+2t+silent" secure=true', patience_s=500)
    rounds, evals = pl.read_parquet(folder / "rounds.parquet"), pl.read_parquet(folder / "evals.parquet")
    assert "sum opened" in (folder / "log.jsonl").read_text()
    assert rounds["completed"].max() == 3
    assert evals["loss"][-1] < evals["loss"][0]


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", ["flip", "silence", "constant"])
def test_one_attacker_of_five_supernodes_is_refused_and_the_model_learns(tmp_path: Path, attack: str) -> None:
    config = 'rounds=6 clients=5 method="fedavg+wfa+robust"'
    folder = run(tmp_path, config, 500.0, nodes=5, attack=attack)
    evals = pl.read_parquet(folder / "evals.parquet")
    assert evals["loss"][-1] < 0.5 * evals["loss"][0]
    saved = sorted(folder.glob("checkpoint/step-*/state.json"))[-1]
    refusals = json.loads(saved.read_text())["body"]["blob"]["server"]["slots"]["aggregate"]["fields"]["refusals"]
    assert max(refusals, key=refusals.get) == "client-4", "the attacker"
    assert refusals["client-4"] >= 3


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
@pytest.mark.timeout(300)
def test_methods_with_state_arrays_and_parts_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAFFOLD that freezes a weight, on three SuperNodes: the same model as in the simulator."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("TINY_SLOTS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(APP), os.environ.get("PYTHONPATH", "")]))
    folder = run(tmp_path, 'rounds=3 method="slots"')
    assert pl.read_parquet(folder / "rounds.parquet")["completed"].to_list() == [3, 3, 3]
    model = safetensors.numpy.load_file(folder / "model.safetensors")["w"]
    assert model[0] == 0
    monkeypatch.syspath_prepend(str(APP))
    from tiny.slots import METHOD, Line, floats, square

    task = fb.Task(
        {f"client-{part}": floats(part) for part in range(3)}, floats(99), Line, loss=square, metric="mae",
        clients_per_round=3, epochs=3, batch_size=10, learning_rate=0.02,
    )  # fmt: skip
    assert model == pytest.approx(fb.run(task, METHOD, rounds=3).weights, abs=1e-5)


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
