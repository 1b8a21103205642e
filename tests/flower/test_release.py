"""The best model is kept, a gate refuses bad ones, models are exported with hashes, and a run returns to a round."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import safetensors
import safetensors.numpy
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World, weights_of

from fedbalancer.cli.app import app
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.experiments.tracking import Sink
from fedbalancer.flower import Strategy
from fedbalancer.flower.operate import checkpoint_rounds, run_status
from fedbalancer.flower.release import Gate, export_model, roll_back

PRIVATE = "fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=2,clip=5)]"


class Delivered(Sink):
    def __init__(self) -> None:
        self.models: list[str] = []

    def on_model(self, model: Path) -> None:
        self.models.append(hashlib.sha256(model.read_bytes()).hexdigest())


def evaluated(values: list[float], models: list[Any] | None = None) -> Any:
    """An evaluation on the server with this accuracy after each round."""

    def evaluate(number: int, arrays: Any) -> Any:
        if models is not None:
            models.append(arrays["w"].numpy())
        return {"accuracy": values[number], "loss": 1.0}

    return evaluate


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    models: list[Any] = []
    values = [0.0, 0.2, 0.9, 0.5, 0.6, 0.7, 0.8]
    options = {"checkpoint_dir": tmp_path, "run_key": "mine", "keep": 3}
    phones = Phone(0), Phone(1)
    World(*phones).start(4, "fedavg+wfa", evaluate_fn=evaluated(values, models), **options)
    assert checkpoint_rounds(tmp_path / "mine") == [2, 3, 4]
    World(*phones).start(6, "fedavg+wfa", evaluate_fn=evaluated(values), **options)
    assert checkpoint_rounds(tmp_path / "mine") == [2, 4, 5, 6]
    done = export_model(tmp_path / "mine", tmp_path / "best.safetensors", best=True)
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert (done["round"], done["manifest_sha256"]) == ("2", manifest["sha256"])
    assert done["sha256"] == hashlib.sha256((tmp_path / "best.safetensors").read_bytes()).hexdigest()
    with safetensors.safe_open(tmp_path / "best.safetensors", "numpy") as file:
        assert file.metadata()["accuracy"] == "0.9"
        assert file.get_tensor("w").tolist() == models[2].tolist()
    last = export_model(tmp_path / "mine", tmp_path / "last.safetensors")
    assert last["round"] == "6"
    with pytest.raises(RunFolderError, match=r"no checkpoint of round 3; it has 2, 4, 5, 6"):
        export_model(tmp_path / "mine", tmp_path / "none.safetensors", at=3)


def test_an_averaged_model_is_exported_as_it_is_delivered(tmp_path: Path) -> None:
    result = World(Phone(0), Phone(1)).start(4, "fedavg+wfa+averaged", checkpoint_dir=tmp_path, run_key="mine")
    export_model(tmp_path / "mine", tmp_path / "model.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "model.safetensors")["w"]
    assert saved == pytest.approx(weights_of(result), abs=0)


def test_a_model_that_does_not_meet_the_gate_is_not_delivered(tmp_path: Path) -> None:
    sink = Delivered()
    options = {"checkpoint_dir": tmp_path, "gate": "accuracy>=0.8", "track": [sink]}
    values = [0.0, 0.85, 0.9, 0.5]
    World(Phone(0)).start(3, "fedavg+wfa", evaluate_fn=evaluated(values), run_key="bad", **options)
    assert sink.models == []
    events = [json.loads(line) for line in (tmp_path / "bad" / "log.jsonl").read_text().splitlines()]
    gated = [(event["event"], event.get("round")) for event in events if "gate" in (event.get("why") or "")]
    assert gated == [("meets the gate", 1), ("refused by the gate", 3), ("model not delivered", None)]
    out = tmp_path / "model.safetensors"
    with pytest.raises(RunFolderError, match=r"round 3 has accuracy 0.5, but the gate is accuracy >= 0.8; --force"):
        export_model(tmp_path / "bad", out)
    assert not out.exists()
    assert export_model(tmp_path / "bad", out, force=True)["round"] == "3"
    assert export_model(tmp_path / "bad", out, best=True)["round"] == "2"
    World(Phone(0)).start(2, "fedavg+wfa", evaluate_fn=evaluated(values), run_key="good", **options)
    assert sink.models == [json.loads((tmp_path / "good" / "manifest.json").read_text())["files"]["model.safetensors"]]


@pytest.mark.parametrize("text", ["accuracy", "accuracy > 0.8", "accuracy >= much", "accuracy >= nan", ">= 0.8"])
def test_a_gate_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(BadSetting, match="must be METRIC >= NUMBER"):
        Strategy(gate=text)


@pytest.mark.parametrize("keep", [1, True, 2.5])
def test_at_least_two_checkpoints_are_kept(keep: Any) -> None:
    with pytest.raises(BadSetting, match=r"keep = .* at least 2"):
        Strategy(keep=keep)


def test_a_gate_may_be_an_upper_bound() -> None:
    gate = Gate.parse(str(Gate.parse(" loss <= 5e-1 ")))
    assert [gate.passes({"loss": loss}) for loss in (0.5, 0.6, float("nan"))] == [True, False, False]


def test_a_run_that_was_rolled_back_continues_as_if_it_had_stopped_there(tmp_path: Path) -> None:
    options = {"checkpoint_dir": tmp_path, "keep": 4}
    World(Phone(0), Phone(1)).start(5, "fedavg+wfa+fedadam", run_key="mine", **options)
    run = tmp_path / "mine"
    rounds = pl.read_parquet(run / "rounds.parquet")
    done = CliRunner().invoke(app, ["flower", "rollback", str(run), "--to", "3", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["checkpoints"] == [2, 3]
    assert not (run / "model.safetensors").exists()
    assert pl.read_parquet(run / "rounds.parquet").equals(rounds.head(3))
    status = run_status(run)
    assert (status["rounds_done"], status["status"], status["why"]) == (
        3,
        "stopped",
        "rolled back from round 5 to round 3",
    )
    World(Phone(0), Phone(1)).start(5, "fedavg+wfa+fedadam", run_key="mine", **options)
    assert pl.read_parquet(run / "rounds.parquet")["round"].to_list() == [1, 2, 3, 4, 5]
    assert checkpoint_rounds(run) == [2, 3, 4, 5]
    done = CliRunner().invoke(app, ["flower", "rollback", str(run), "--to", "1"])
    assert done.exit_code == 2
    assert "no checkpoint of round 1; it has 2, 3, 4, 5" in done.output


def test_a_rollback_does_not_return_the_spent_privacy(tmp_path: Path) -> None:
    options = {"checkpoint_dir": tmp_path, "run_key": "mine", "keep": 5}
    World(Phone(0), Phone(1)).start(4, PRIVATE, **options)
    before = pl.read_parquet(tmp_path / "mine" / "privacy.parquet")
    roll_back(tmp_path / "mine", 2)
    roll_back(tmp_path / "mine", 1)
    World(Phone(0), Phone(1)).start(2, PRIVATE, **options)
    after = pl.read_parquet(tmp_path / "mine" / "privacy.parquet")
    assert after["releases"].to_list() == [count + 1 for count in before["releases"].to_list()]


def test_a_run_whose_server_runs_is_not_rolled_back(tmp_path: Path) -> None:
    def evaluate(number: int, arrays: Any) -> None:
        if number == 2:
            with pytest.raises(RunFolderError, match="another process"):
                roll_back(tmp_path / "mine", 1)

    World(Phone(0)).start(2, "fedavg+wfa", evaluate_fn=evaluate, checkpoint_dir=tmp_path, run_key="mine")
    assert run_status(tmp_path / "mine")["rounds_done"] == 2


class Killed(BaseException):
    """The server is killed."""


def test_late_reports_survive_a_killed_server(tmp_path: Path) -> None:
    """The second client's report of round 2 comes after the quorum; the server dies before it joins a round."""
    options = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    slow = Phone(1, change=lambda reply: [(15.0 if len(slow.orders) == 2 else 0.0, reply)])
    world = World(Phone(0), slow)

    def dies(event: str, **fields: Any) -> None:
        world.told(event, **fields)
        if event == "late report":
            raise Killed

    with pytest.raises(Killed):
        world.start(9, "fedavg+1t+late", log=dies, **options)
    assert len(list((tmp_path / "mine" / "late").iterdir())) == 1
    again = World(Phone(0), Phone(1))
    again.start(9, "fedavg+1t+late", **options)
    clients = pl.read_parquet(tmp_path / "mine" / "clients.parquet")
    outcomes = Counter(clients.filter(clients["client"] == "c1")["outcome"].to_list())
    assert outcomes["joined"] == 1
    assert outcomes["under way"] == 1
    assert list((tmp_path / "mine" / "late").iterdir()) == []
    assert not again.of("late report"), "it came from the disk"
