"""`fedbalancer bench` as a real process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_bench_prints_json_and_writes_its_results(cli: Cli, tmp_path: Path) -> None:
    """No data set is there: the folder is empty and the data are random."""
    done = cli("bench", "--tasks", "watch", "--repeats", "2", "--seconds", "0.01", "--json", "--out", "found")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    watch = found["tasks"]["watch"]
    assert {"samples_per_s", "naive_samples_per_s", "ratio_to_naive", "limit_samples_per_s"} <= watch.keys()
    names = {"naive", "plain inline", "fast inline", "limit"}
    assert names < watch["paths"].keys()
    assert all(len(path["repeats"]) == 2 for path in watch["paths"].values())
    assert watch["samples_per_s"] < watch["limit_samples_per_s"]
    assert set(found["clients_per_s_without_training"]) == {"fedavg+1t", "fedbalancer"}
    assert json.loads((tmp_path / "found" / "bench.json").read_text())["tasks"] == found["tasks"]
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"bench.json", "bench.md", "bench.png"}
    assert done.stderr == ""


def test_an_unknown_task_is_one_line_and_exit_code_2(cli: Cli) -> None:
    done = cli("bench", "--tasks", "har,femnits")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "femnits" in done.stderr
    assert "femnist" in done.stderr


def test_help_shows_examples(cli: Cli) -> None:
    done = cli("bench", "--help")
    assert done.returncode == 0
    assert "fedbalancer bench --tasks femnist,har" in done.stdout


def test_attacks_writes_a_matrix_and_continues(cli: Cli, tmp_path: Path) -> None:
    command = ("bench", "attacks", "--methods", "canter+robust", "--attack", "quiet-flip", "--attackers", "20")
    asked = (*command, "--seeds", "1", "--rounds", "1,2", "--out", "matrix")
    done = cli(*asked)
    assert done.returncode == 0, done.stderr
    assert "20 attackers of 100, 2 rounds" in done.stdout
    assert {path.name for path in (tmp_path / "matrix").iterdir()} == {"attacks.csv", "README.md"}
    again = cli(*asked, "--json")
    assert again.stderr == ""
    assert [row["rounds"] for row in json.loads(again.stdout)] == [1, 2] * 3


def test_wrong_numbers_of_attackers_are_one_line_and_exit_code_2(cli: Cli) -> None:
    done = cli("bench", "attacks", "--attackers", "ten")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--attackers 'ten' must be whole numbers > 0" in done.stderr
