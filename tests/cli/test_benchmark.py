"""`fedbalancer benchmark` on the command line: its errors, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_the_projects_results_are_shown_as_json() -> None:
    folder = ROOT / "docs" / "results" / "benchmark"
    if not (folder / "runs.parquet").is_file():
        pytest.skip("no results yet")
    result = CliRunner().invoke(app, ["benchmark", "show", "--results", str(folder), "--json"])
    shown = json.loads(result.stdout)
    assert shown["suite"] == "tta-1"
    for cell in shown["cells"].values():
        assert {name.split(", ")[1] for name in cell} >= {"default", "tuned"}
