"""Mistakes of an operator: wrong options and damaged run folders give one line and exit code 2, and change nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World

from fedbalancer.cli.app import app
from fedbalancer.core.errors import BadSetting, FedBalancerError
from fedbalancer.experiments.learned_fleet import learn
from fedbalancer.flower import Strategy
from fedbalancer.flower.operate import run_status

COMMANDS = {
    "status": ("flower", "status"),
    "rollback": ("flower", "rollback", "--to", "2"),
    "export": ("flower", "export", "--out", "model.safetensors"),
    "learn": ("fleet", "learn", "--out", "fleet.csv"),
    "shadow": ("fleet", "shadow"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    World(Phone(0), Phone(1)).start(3, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
    return tmp_path / "mine"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(*arguments: Any) -> str:
    """The only line of a command that fails."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


def other_columns(run: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(run / "clients.parquet")


def texts(run: Path) -> None:
    table = pl.read_parquet(run / "clients.parquet")
    table.with_columns(pl.col("train_s").cast(pl.String)).write_parquet(run / "clients.parquet")


def no_journal(run: Path) -> None:
    (run / "checkpoint" / "journal.jsonl").unlink()
    other_columns(run)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("manifest", [None, b"{", b"[]", b"\xff"])
def test_a_folder_without_a_valid_manifest_is_refused(command: str, manifest: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    if manifest is not None:
        (tmp_path / "mine" / "manifest.json").write_bytes(manifest)
    words = COMMANDS[command]
    before = snapshot(tmp_path)
    assert "mine" in refused(*words[:2], tmp_path / "mine", *words[2:])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "damage", "message"),
    [
        ("learn", other_columns, "clients.parquet is not the table clients of a run: no valid column 'round'"),
        ("learn", texts, "no valid column 'train_s'"),
        ("shadow", other_columns, "no valid column 'round'"),
        ("status", no_journal, "has no journal that can be read"),
        ("export", no_journal, "has no journal that can be read"),
    ],
)
def test_tables_that_are_none_are_refused(
    command: str, damage: Callable[[Path], None], message: str, run: Path
) -> None:
    damage(run)
    before = snapshot(run.parent)
    words = COMMANDS[command]
    assert message in refused(*words[:2], run, *words[2:])
    assert snapshot(run.parent) == before


def test_a_damaged_log_costs_only_its_damaged_lines(run: Path) -> None:
    log = run / "log.jsonl"
    before, overhead_s = run_status(run), learn(run).recording.overhead_s
    wrong = b'[1]\n{"event": 3}\n{"event": "round", "time": "never"}\n{"a": 1}\nnull\n'
    log.write_bytes(wrong + b"\xff\xfe\n" + log.read_bytes() + b'{"event": "rou')
    after = run_status(run)
    assert {**after, "last_round_age_s": 0, "disk_bytes": 0} == {**before, "last_round_age_s": 0, "disk_bytes": 0}
    assert learn(run).recording.overhead_s == overhead_s


def test_a_journal_that_cannot_be_read_is_replaced_by_the_tables(run: Path) -> None:
    (run / "checkpoint" / "journal.jsonl").write_bytes(b"zzz")
    assert run_status(run)["rounds_done"] == 3
    done = CliRunner().invoke(app, ["flower", "status", str(run)])
    assert done.exit_code == 0
    assert "rounds     3 of 3" in done.output


def test_a_rollback_to_a_round_without_checkpoint_changes_nothing(run: Path) -> None:
    before = snapshot(run)
    assert "no checkpoint of round 99; it has 2, 3" in refused("flower", "rollback", run, "--to", 99)
    assert snapshot(run) == before


@pytest.mark.parametrize("out", [".", "file/model.safetensors", "none/model.safetensors"])
def test_an_export_to_an_impossible_path_says_which(out: str, run: Path) -> None:
    (run.parent / "file").write_text("")
    before = snapshot(run.parent)
    assert f"--out {out} cannot be written: " in refused("flower", "export", run, "--out", out)
    assert snapshot(run.parent) == before


def test_only_a_folder_has_loss_lists(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file is not a folder" in refused("flower", "forget", tmp_path / "file")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "learned fleet 1"}'])
def test_a_damaged_description_of_a_fleet_is_named(text: str, run: Path) -> None:
    learn(run).write(Path("fleet.csv"))
    content = json.loads(Path("fleet.learned.json").read_text())
    Path("fleet.learned.json").write_text(text)
    options = ("--task", "synthetic", "-m", "fedavg+wfa", "--users", "4", "--rounds", "2", "--runs", "2")
    assert "fleet.learned.json" in refused("forecast", "--fleet", "fleet.csv", *options)
    Path("fleet.learned.json").write_text(json.dumps({**content, "fleet_sha256": "another"}))
    shutil.copy("fleet.csv", "copy.csv")
    assert CliRunner().invoke(app, ["forecast", "--fleet", "fleet.csv", *options]).exit_code == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"track": ["unknown"]}, "unknown tracker 'unknown'"),
        ({"track": "prometheus"}, "must be a list of trackers"),
        ({"track": ["prometheus:http"]}, "port 0 to 65535"),
        ({"track": ["prometheus:99999"]}, "port 0 to 65535"),
        ({"run_key": "a/b"}, "must be a file name"),
        ({"run_key": ""}, "must be a file name"),
        ({"method": "fedavg+wfa[clients=Tagged(require='a+b',exclude='b')]"}, "'b' is in require and in exclude"),
        ({"method": "fedavg+wfa[clients=Canary(tag='')]"}, "must be one tag"),
        ({"method": "fedavg+wfa[clients=TagQuota(tag='a+b',at_least=0.1)]"}, "must be one tag"),
        ({"method": "fedavg+wfa[clients=DailyBudget(rounds=0)]"}, "rounds = 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_app_runs(setting: dict[str, Any], message: str) -> None:
    if "prometheus" in str(setting.get("track")):
        pytest.importorskip("prometheus_client", reason="the extra telemetry is not installed")
    with pytest.raises(FedBalancerError, match=message.replace("+", r"\+")) as caught:
        Strategy(**setting)
    assert "\n" not in str(caught.value)


def test_a_canary_tag_is_optional_where_it_has_no_effect() -> None:
    assert Strategy("fedavg+wfa[clients=TagQuota()]").method.name
    with pytest.raises(BadSetting):
        Strategy("fedavg+wfa[clients=TagQuota(at_most=0.5)]")
