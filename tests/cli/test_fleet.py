"""`fedbalancer fleet show`, `--devices` and the table `[devices]`, as real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from subprocess import CompletedProcess

import pytest

import fedbalancer as fb
from fedbalancer.store import read_manifest

Cli = Callable[..., "CompletedProcess[str]"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.csv"
RUN = ("run", "synthetic", "-m", "fedavg+1t", "--users", "12", "--rounds", "1", "--timing-only", "--out", "out")


def test_show_prints_and_plots(cli: Cli, tmp_path: Path) -> None:
    copy(EXAMPLE, tmp_path)
    done = cli("fleet", "show", "fleet.csv", "--out", "pictures/fleet.png")
    assert done.returncode == 0, done.stderr
    assert "fleet.csv: 12 devices" in done.stdout
    assert "median" in done.stdout
    assert "hour  share online" in done.stdout
    assert "nothing implausible" in done.stdout
    assert (tmp_path / "pictures" / "fleet.png").stat().st_size > 1000


def test_show_as_json_and_what_is_implausible(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ms.csv").write_text("device,batch_s,online\na,420,0-3600\nb,1600,never\n")
    shown = json.loads(cli("fleet", "show", "ms.csv", "--json").stdout)
    assert shown["devices"] == 2
    assert shown["quantiles"]["batch_s"]["median"] == 1010
    assert shown["online_by_hour"][0] == 0.5
    assert shown["never_online"] == 1
    assert [text.split(":")[0] for text in shown["implausible"]] == [
        "the median of batch_s is 1010", "b has no online interval; only a client with the same id gets such a device",
    ]  # fmt: skip
    assert shown["picture"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fleet", "show", "none.csv"), "error: there is no fleet file none.csv"),
        (("fleet", "show", "bad.csv"), "error: bad.csv, line 3, column batch_s: 'x' must be a number such as 0.25"),
        (("fleet", "show", "bad.csv", "--out", "a.pdf"), "error: --out a.pdf must end in .png or .svg"),
        ((*RUN, "--devices", "bad.csv"), "error: bad.csv, line 3, column batch_s: 'x' must be a number such as 0.25"),
        ((*RUN, "--devices", "fleet.txt"), "must be a file that ends in .csv or .parquet, or paper"),
        ((*RUN, "--config", "bad.toml"), "devices = 'fleet.csv' must be a table: [devices]"),
        ((*RUN, "--config", "unknown.toml"), "unknown kind of devices 'sintetic'; did you mean synthetic"),
        (("paper", "table1", "--config", "fleet.toml"), "[devices] of the configuration file applies to run, compare"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("device,batch_s\na,1\nb,x\n")
    (tmp_path / "bad.toml").write_text('devices = "fleet.csv"\n')
    (tmp_path / "unknown.toml").write_text('[devices]\nkind = "sintetic"\n')
    (tmp_path / "fleet.toml").write_text('[devices]\nkind = "paper"\n')
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_devices_of_a_run_by_option_and_by_table(cli: Cli, tmp_path: Path) -> None:
    copy(EXAMPLE, tmp_path)
    done = cli(*RUN, "--devices", "fleet.csv")
    assert done.returncode == 0, done.stderr
    recorded = read_manifest(tmp_path / "out")["spec"]["devices"]
    assert recorded == {"file": str(tmp_path / "fleet.csv"), "sha256": fb.Fleet.from_csv(EXAMPLE).digest}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "settings.toml").write_text('[devices]\nfile = "../fleet.csv"\n')
    cli(*RUN, "--overwrite", "--config", "sub/settings.toml")
    assert read_manifest(tmp_path / "out")["spec"]["devices"]["sha256"] == recorded["sha256"]
    (tmp_path / "fedbalancer.toml").write_text(
        '[devices]\nkind = "synthetic"\ncount = 20\nslow = {share = 1, batch_s = {lognormal = [1.5, 0.3]}}\n'
        "bandwidth = {down = 20, up = 5}\n"
    )
    cli(*RUN, "--overwrite")
    table = read_manifest(tmp_path / "out")["spec"]["devices"]
    assert (table["kind"], table["count"], table["slow"]["batch_s"]) == ("synthetic", 20, {"lognormal": [1.5, 0.3]})
    cli(*RUN, "--overwrite", "--devices", "paper")
    assert read_manifest(tmp_path / "out")["spec"]["devices"]["kind"] == "paper", "the option wins"


def test_a_changed_fleet_does_not_resume(cli: Cli, tmp_path: Path) -> None:
    copy(EXAMPLE, tmp_path)
    assert cli(*RUN, "--devices", "fleet.csv").returncode == 0
    assert cli("resume", "out").returncode == 0
    (tmp_path / "fleet.csv").write_text("device,batch_s\na,1\n")
    done = cli("resume", "out")
    assert done.returncode == 2
    assert "fleet.csv has changed" in done.stderr


def test_learn_shadow_and_forecast(cli: Cli, tmp_path: Path) -> None:
    fb.run("synthetic", "fedavg+wfa", users=12, rounds=5, timing_only=True, out=tmp_path / "out",
           settings={"clients_per_round": 6})  # fmt: skip
    nothing = cli("fleet", "shadow", "out", "--methods", "")
    assert (nothing.returncode, len(nothing.stderr.splitlines())) == (2, 1)
    assert "--methods names no method" in nothing.stderr
    learned = cli("fleet", "learn", "out", "--out", "mine.csv")
    assert learned.returncode == 0, learned.stderr
    assert "12 devices from 5 rounds of out" in learned.stdout
    assert "lie in the fitted 90% band" in learned.stdout
    assert {path.name for path in tmp_path.glob("mine.*")} == {"mine.csv", "mine.learned.json", "mine.png"}
    replayed = json.loads(cli("fleet", "shadow", "out", "--methods", "fedavg+1t,canter", "--json").stdout)
    assert [row["method"] for row in replayed["methods"]] == ["fedavg+1t", "canter"]
    assert replayed["error"] < 1e-9
    options = ("--task", "synthetic", "--users", "12", "--rounds", "4", "--runs", "2", "--jobs", "1", "-m", "canter")
    shown = cli("forecast", "--fleet", "mine.csv", *options, "--target", ".3", "--start", "2026-11-19T08:00")
    assert shown.returncode == 0, shown.stderr
    assert "canter: 30% on Thu 19 Nov 08:0" in shown.stdout
    assert "not known: data: accuracies are those of the task 'synthetic'" in shown.stdout


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--start", "soon"), "--start 'soon' must be a date and time"),
        (("--target", "high"), "--target 'high' must be numbers above 0"),
        (("--target", "90"), "target = 90 must be a value of"),
        (("--clients-per-round", "2.5"), "--clients-per-round '2.5' must be numbers above 0"),
        (("--horizon", "long"), "'long' must be a duration"),
    ],
)
def test_wrong_options_of_a_forecast(cli: Cli, option: tuple[str, str], message: str) -> None:
    done = cli("forecast", "--fleet", str(EXAMPLE), "--task", "synthetic", *option)
    assert done.returncode == 2
    assert message in done.stderr
