"""`fedbalancer paper ITEM` as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from typer.testing import CliRunner

from fedbalancer.cli.app import app
from fedbalancer.paper.items import ITEMS

Cli = Callable[..., "CompletedProcess[str]"]
SMALL = ("--tasks", "synthetic", "--users", "8", "--seeds", "1", "--rounds", "5", "--no-grid", "--extend", "1")


def test_help_names_every_item() -> None:
    done = CliRunner().invoke(app, ["paper", "--help"])
    assert done.exit_code == 0
    for name in ITEMS:
        assert name in done.output
    assert CliRunner().invoke(app, ["paper", "table1", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table1", "--tasks", "hare"), "did you mean har"),
        (("table1", "--tasks", "synthetic", "--rule", "fairr"), "did you mean fair"),
        (("table1", "--tasks", ""), "at least one task"),
        (("table1", "--tasks", "synthetic,synthetic"), "listed twice"),
        (("fig6", "--tasks", "synthetic", "--extend", "0.5"), "must be from 1"),
        (("fig6", "--tasks", "synthetic", "--scale", "huge"), "unknown scale"),
        (("table3", "--tasks", "synthetic", "--no-grid"), "omit --no-grid"),
        (("table9",), "No such command"),
    ],
)
def test_a_mistake_is_told_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["paper", *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert not (tmp_path / "runs").exists()


def test_items_share_their_runs(cli: Cli, tmp_path: Path) -> None:
    first = cli("paper", "table1", *SMALL)
    assert first.returncode == 0, first.stderr
    assert "8 of 8 runs" in first.stderr
    folder = tmp_path / "runs" / "paper" / "results" / "table1"
    for ending in ("md", "html", "svg", "png"):
        assert (folder / f"table1.{ending}").is_file()
    scores = pl.read_parquet(folder / "scores.parquet")
    assert set(scores["seed"]) == {0}
    assert {"target_share", "time_s", "censored", "touch_s", "ratio", "device_s", "client_median"} <= set(
        scores.columns
    )
    second = cli("paper", "fig5b", *SMALL, "--json")
    assert second.returncode == 0, second.stderr
    ended = [line for line in second.stderr.splitlines() if line.endswith(" done")]
    assert len(ended) == 1, "only the one with the forward pass is new"
    assert all("+forwardpass" in line for line in ended)
    result = json.loads(second.stdout)
    assert set(result["synthetic"]["forward pass"]) == {
        "fedavg+1t", "prox+1t", "fedbalancer", "fedbalancer+forwardpass",
    }  # fmt: skip
    index = (tmp_path / "runs" / "paper" / "results" / "README.md").read_text()
    assert "fig5b/fig5b.md" in index
    assert "table1/table1.md" in index


def test_ctrl_c_stops_and_the_same_command_goes_on(cli: Cli, tmp_path: Path) -> None:
    arguments = ("paper", "fig5b", "--tasks", "synthetic", "--users", "8", "--seeds", "1", "--rounds", "60",
                 "--extend", "1", "--jobs", "1")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbalancer", *arguments],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    while not list(tmp_path.glob("runs/paper/synthetic-*/*/seed-0/checkpoint/*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "to continue: fedbalancer paper fig5b" in said
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "paper" / "results" / "fig5b" / "fig5b.html").is_file()


def test_ddle_as_json(cli: Cli) -> None:
    done = cli("paper", "fig4", "--tasks", "synthetic", "--users", "40", "--seeds", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["synthetic"]
    assert set(found) == {"peak_deadline_s", "peak_ddle"}
    assert 1 <= found["peak_deadline_s"] <= 1200
    assert 0 < found["peak_ddle"] <= 40


@pytest.mark.parametrize(("seeds", "found"), [("10..12", [10, 11, 12]), ("4,7", [4, 7]), ("2", [0, 1])])
@pytest.mark.parametrize(("item", "table"), [("fig4", "peaks"), ("table4", "devices")])
def test_an_item_takes_seeds_as_a_comparison_does(
    cli: Cli, tmp_path: Path, item: str, table: str, seeds: str, found: list[int]
) -> None:
    done = cli("paper", item, "--tasks", "synthetic", "--users", "20", "--seeds", seeds, "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "mine" / item / f"{table}.parquet")["seed"].unique().sort().to_list() == found


@pytest.mark.parametrize("item", ["fig5b", "table5"])
def test_seeds_that_are_none_are_refused(cli: Cli, item: str) -> None:
    done = cli("paper", item, "--seeds", "12..10")
    assert done.returncode == 2
    assert "seeds = '12..10' must be a number (5), a range (10..19) or a list (4,7)" in done.stderr


def test_devices_and_norms(cli: Cli, tmp_path: Path) -> None:
    done = cli("paper", "table4", "--tasks", "synthetic", "--users", "60", "--seeds", "2", "--out", "mine")
    assert done.returncode == 0, done.stderr
    shares = pl.read_parquet(tmp_path / "mine" / "table4" / "devices.parquet")["class"].value_counts(normalize=True)
    assert set(shares["class"]) <= {"slow", "mid", "fast"}
    done = cli("paper", "fig1", "--tasks", "synthetic", "--users", "8", "--seeds", "1", "--rounds", "8", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["synthetic"]
    assert 0 <= found["early"] <= 1
    assert 0 <= found["late"] <= 1


def test_report_shows_an_item_anew_and_keeps_its_rule(tmp_path: Path) -> None:
    from paper.test_folder import made

    folder = tmp_path / "fig5b"
    made(folder, "har")
    (folder / "fig5b.html").unlink()
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0
    assert "times as fast as the reference" in done.output
    assert (folder / "fig5b.html").is_file()
    assert "har" in json.loads(CliRunner().invoke(app, ["report", str(folder), "--json"]).stdout)
    refused = subprocess.run(
        [sys.executable, "-m", "fedbalancer", "report", str(folder), "--rule", "paper"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "keeps the rule" in refused.stderr
    assert "Traceback" not in refused.stderr
