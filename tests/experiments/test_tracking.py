"""Trackers receive the events of a run, and cannot harm it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedbalancer as fb
from fedbalancer.cli.app import app
from fedbalancer.experiments.tracking import Sink

SMALL = {"users": 10, "rounds": 4, "settings": {"clients_per_round": 4, "eval_every": 2}}


class Heard(Sink):
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        self.told.append(("start", manifest["method"]))

    def on_round(self, row: Mapping[str, Any]) -> None:
        self.told.append(("round", row["round"]))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self.told.append(("evaluation", row["accuracy"]))

    def on_end(self, status: str) -> None:
        self.told.append(("end", status))


class Fails(Sink):
    def on_round(self, row: Mapping[str, Any]) -> None:
        raise OSError(f"round {row['round']}: no network")


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_sink_hears_everything_in_order(tmp_path: Path, in_folder: bool) -> None:
    sink = Heard()
    result = fb.run("synthetic", track=[sink], out=tmp_path / "run" if in_folder else None, **SMALL)  # type: ignore[arg-type]
    assert [told for told in sink.told if told[0] != "evaluation"] == [
        ("start", "fedbalancer"), *(("round", number) for number in range(1, 5)), ("end", "done"),
    ]  # fmt: skip
    assert [value for kind, value in sink.told if kind == "evaluation"] == result.evals["accuracy"].to_list()


def test_a_sink_that_raises_is_named_once_and_changes_nothing(tmp_path: Path) -> None:
    alone = fb.run("synthetic", out=tmp_path / "alone", **SMALL)  # type: ignore[arg-type]
    sink = Heard()
    heard = fb.run("synthetic", track=[Fails(), sink], out=tmp_path / "run", **SMALL)  # type: ignore[arg-type]
    assert heard.rounds.equals(alone.rounds)
    assert (heard.status, sink.told[-1]) == ("done", ("end", "done"))
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    failed = [line for line in log if line["event"] == "sink failed"]
    assert [(line["sink"], line["why"]) for line in failed] == [("Fails", "OSError: round 1: no network")]


def test_a_run_that_goes_on_tells_of_its_new_rounds(tmp_path: Path) -> None:
    before = fb.run("synthetic", out=tmp_path / "run", **SMALL)  # type: ignore[arg-type]
    sink = Heard()
    after = fb.resume(tmp_path / "run", budget_s=2 * float(before.rounds["end_s"][-1]), track=[sink])
    assert after.rounds.height > 4
    heard = [value for kind, value in sink.told if kind == "round"]
    assert heard == list(range(5, after.rounds.height + 1))


def test_a_class_of_the_users_hears_every_run_of_a_comparison(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "fedbalancer", "compare", "synthetic", "--methods", "fedavg+1t,fedbalancer",
        "--seeds", "1", "--extend", "1", "--users", "8", "--rounds", "4", "--track", "sinks:Written",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    known = {"HEARD": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(command, env=os.environ | known, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for method in ("fedavg+1t", "fedbalancer"):
        told = json.loads((tmp_path / f"{method}-0.json").read_text())
        assert told[0] == ["round", 1]
        assert told[-1] == ["end", "done"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensorbord", "did you mean tensorboard"),
        ("nowhere.at_all:Class", "--track nowhere.at_all:Class cannot be imported"),
        ("fedbalancer.experiments.tracking:Nothing", "cannot be imported"),
    ],
)
def test_a_sink_that_is_not_there_is_one_line_before_anything_runs(tmp_path: Path, name: str, says: str) -> None:
    done = CliRunner().invoke(app, ["run", "synthetic", "--track", name, "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert says in done.output
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_rounds_and_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    fb.run("synthetic", track=[f"tensorboard:{tmp_path / 'tb'}"], out=tmp_path / "run", **SMALL)  # type: ignore[arg-type]
    fb.run("synthetic", track=["tensorboard"], seed=1, out=tmp_path / "other", **SMALL)  # type: ignore[arg-type]
    for folder in (tmp_path / "tb", tmp_path / "other" / "tensorboard"):
        (events,) = folder.rglob("events.out.tfevents.*")
        written = events.read_bytes()
        assert b"round/completed" in written
        assert b"rounds/accuracy" in written
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "done"
    assert "sink failed" not in (tmp_path / "run" / "log.jsonl").read_text()


def test_mlflow_gets_rounds_and_evaluations(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    where = f"sqlite:///{tmp_path / 'mlflow.db'}"
    fb.run("synthetic", track=[f"mlflow:{where}"], out=tmp_path / "run", **SMALL)  # type: ignore[arg-type]
    assert "sink failed" not in (tmp_path / "run" / "log.jsonl").read_text()
    client = tracking.MlflowClient(tracking_uri=where)
    (found,) = client.search_runs([client.get_experiment_by_name("fedbalancer").experiment_id])
    assert found.info.status == "FINISHED"
    assert [each.step for each in client.get_metric_history(found.info.run_id, "round/completed")] == [1, 2, 3, 4]
