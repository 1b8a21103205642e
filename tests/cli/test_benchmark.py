"""`fedbalancer benchmark` on the command line: its errors, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedbalancer.cli.app import app

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "--results", "nothing"], "has no benchmark results"),
        (["verify", "--results", "nothing"], "has no benchmark results"),
        (["run", "--suite", "tta-0", "--results", "r"], "unknown suite"),
        (["tune", "--cells", "digits", "--out", "o", "--results", "r"], "unknown cell of tta-1"),
        (["submit", "mine.toml"], "cannot read mine.toml"),
        (["run", "--cells", "har", "--untuned", "canter[p=.8,deadline=2T],oort+none"], "unknown modifier"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["benchmark", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_lists_of_methods_are_split_outside_of_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: dict[str, Any] = {}

    def remember(*_: Any, **options: Any) -> bool:
        received.update(options)
        return True

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedbalancer.experiments.benchmark.run.run_benchmark", remember)
    words = ["-m", "fedavg+1t,oort", "-m", "canter", "--untuned", "canter[p=.8,deadline=2T], oort+late", "--untuned"]
    result = CliRunner().invoke(app, ["benchmark", "run", *words, "canter-samples"])
    assert result.exit_code == 0
    assert received["methods"] == ["fedavg+1t", "oort", "canter"]
    assert received["untuned"] == ["canter[p=.8,deadline=2T]", "oort+late", "canter-samples"]


def test_the_projects_results_are_shown_as_json() -> None:
    folder = ROOT / "docs" / "results" / "benchmark"
    if not (folder / "runs.parquet").is_file():
        pytest.skip("no results yet")
    result = CliRunner().invoke(app, ["benchmark", "show", "--results", str(folder), "--json"])
    shown = json.loads(result.stdout)
    assert shown["suite"] == "tta-1"
    for cell in shown["cells"].values():
        assert {name.split(", ")[1] for name in cell} >= {"default", "tuned"}
