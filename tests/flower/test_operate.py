"""An operator reads and changes the folder of a run on Flower."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World

import fedbalancer as fb
from fedbalancer.cli.app import app
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.flower.events import FORMAT, LEVEL, JsonLines, configure_log
from fedbalancer.flower.operate import run_status
from fedbalancer.flower.release import export_model, roll_back


class Killed(Exception):
    """The ServerApp dies."""


def of_another_round(reply: Any) -> Any:
    reply.content.config_records["fedbalancer"]["round"] = 99
    return reply


def accuracies(*values: float) -> Any:
    """An evaluation on the server with these accuracies by round."""
    return lambda number, arrays: {"accuracy": values[number], "loss": 1.0}


def test_the_status_of_a_run_that_needs_attention(tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1), Phone(2, change=of_another_round))
    world.start(
        4, "fedavg+wfa", evaluate_fn=accuracies(0.1, 0.5, 0.7, 0.8, 0.3), checkpoint_dir=tmp_path, run_key="mine"
    )
    status = run_status(tmp_path / "mine", window=2)
    assert (status["status"], status["rounds_done"], status["rounds_planned"]) == ("done", 4, 4)
    assert status["last_round"]["round"] == 4
    assert status["open_round"] is None
    assert status["recent"]["rounds"] == 2
    assert sum(status["recent"]["outcomes"].values()) < sum(status["outcomes"].values())
    assert status["accuracy"] == {"last": 0.3, "round": 4, "best": 0.8, "best_round": 3}
    assert [each["client"] for each in status["clients"]["without_report"]] == ["c2"]
    assert status["invalid"][0]["client"] == "c2"
    assert "a report of client 'c2' for round 99" in status["invalid"][0]["why"]
    assert status["suspended"][0]["client"] == "c2"
    assert status["checkpoints"] == [3, 4]
    advice = "; ".join(status["advice"])
    assert "1 selected clients have never reported: c2" in advice
    assert "the accuracy fell from 0.800 (round 3) to 0.300" in advice
    done = CliRunner().invoke(app, ["flower", "status", str(tmp_path / "mine"), "--last", "2"])
    assert done.exit_code == 0, done.output
    assert "attention  the accuracy fell" in done.output
    assert "rounds     4 of 4, 0 without a report, 0 restarts" in done.output
    as_json = CliRunner().invoke(app, ["flower", "status", str(tmp_path / "mine"), "--last", "2", "--json"])
    assert json.loads(as_json.output)["accuracy"] == status["accuracy"]


def test_the_status_knows_whether_a_server_runs(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def evaluate(number: int, arrays: Any) -> None:
        if number == 2:
            seen.append(run_status(tmp_path / "mine"))
            manifest = tmp_path / "mine" / "manifest.json"
            seen.append(json.loads(manifest.read_text()))
            raise Killed

    with pytest.raises(Killed):
        World(Phone(0)).start(3, "fedavg+wfa", evaluate_fn=evaluate, checkpoint_dir=tmp_path, run_key="mine")
    running, manifest = seen
    assert (running["server_is_running"], running["rounds_done"], running["advice"]) == (True, 1, [])
    # A server that was killed leaves the manifest as it was.
    (tmp_path / "mine" / "manifest.json").write_text(json.dumps(manifest))
    status = run_status(tmp_path / "mine")
    assert status["server_is_running"] is False
    assert "submit the app again with the same run_key" in status["advice"][0]
    World(Phone(0)).start(3, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
    assert (run_status(tmp_path / "mine")["restarts"], run_status(tmp_path / "mine")["advice"]) == (1, [])


def test_a_simulated_run_has_another_report(tmp_path: Path) -> None:
    fb.run("synthetic", users=4, rounds=1, out=tmp_path / "run", settings={"clients_per_round": 2, "w": 1})
    for read in (run_status, lambda run: roll_back(run, 1), lambda run: export_model(run, tmp_path / "model")):
        with pytest.raises(RunFolderError, match="not a run on Flower"):
            read(tmp_path / "run")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The log of the strategy, left as it was."""
    logger = logging.getLogger("flwr.fedbalancer")
    before = logger.level, list(logger.handlers), logger.propagate
    yield logger
    logger.setLevel(before[0])
    logger.handlers, logger.propagate = before[1], before[2]


def test_the_log_is_json_lines_with_run_round_client_and_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: logging.Logger, tmp_path: Path
) -> None:
    monkeypatch.setenv(FORMAT, "json")
    World(Phone(0), Phone(1, change=of_another_round)).start(1, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (invalid,) = [line for line in lines if line.get("event") == "invalid"]
    assert invalid["level"] == "warning"
    assert (invalid["run"], invalid["round"], invalid["client"]) == ("mine", 1, "c1")
    assert "round 99" in invalid["reason"]
    reports = [line for line in lines if line.get("event") == "reported"]  # the line of a client
    assert {(line["run"], line["round"], line["client"]) for line in reports} == {("mine", 1, "c0"), ("mine", 1, "c1")}
    assert sum(isinstance(handler.formatter, JsonLines) for handler in log.handlers) == 1


def test_the_level_of_the_log(monkeypatch: pytest.MonkeyPatch, log: logging.Logger) -> None:
    monkeypatch.setenv(LEVEL, "warning")
    configure_log()
    assert log.level == logging.WARNING
    for variable, value in ((LEVEL, "LOUD"), (FORMAT, "xml")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with pytest.raises(BadSetting, match=f"{variable}={value} must be"):
                configure_log()


def test_wrong_folders_are_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app]\n")
    done = CliRunner().invoke(app, ["flower", "submit", str(tmp_path), "--run", str(tmp_path / "pyproject.toml")])
    assert done.exit_code == 2
    assert "is a file; pass the run folder" in done.output
    assert len(done.output.splitlines()) == 1
