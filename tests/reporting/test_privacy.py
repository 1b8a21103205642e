"""Privacy in reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from reporting.conftest import write_run

from fedbalancer.reporting import write_report

TOLD = {"covers": "metadata only", "mechanism": "histogram", "noise_multiplier": 7.0, "unit": "sample", "delta": 1e-5}
ROWS = {"client": ["a", "b", "c"], "releases": [4, 0, 9], "epsilon": [1.07, 0.0, 1.68]}


def run_with(folder: Path, told: Any, rows: dict[str, Any] | None = None) -> Path:
    write_run(folder, "fedbalancer", 0)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "privacy": told}))
    if rows is not None:
        pl.DataFrame(rows, schema_overrides={"epsilon": pl.Float64}).write_parquet(folder / "privacy.parquet")
    return folder


def texts(folder: Path) -> tuple[dict[str, Any], str, str]:
    written = write_report(folder)
    return json.loads(written.summary.read_text()), written.table.read_text(), written.page.read_text()


def test_epsilon_stands_with_unit_delta_and_what_it_is_about(tmp_path: Path) -> None:
    summary, table, page = texts(run_with(tmp_path / "run", TOLD, ROWS))
    said = "histogram: epsilon at most 1.68 after 9 reports for one sample at delta 1e-05 (metadata only)"
    assert summary["epsilon"] == 1.68
    assert summary["privacy"] == said
    assert said in table
    assert "Privacy of the metadata" in page
    assert "its replies are not covered" in page
    assert "<td>1.68</td><td>1.07</td><td>9</td><td>1e-05</td><td>∞</td>" in page


@pytest.mark.parametrize(
    ("change", "rows", "words"),
    [
        ({"mechanism": "none", "noise_multiplier": 0.0}, None, "none: epsilon infinite, because no noise is added"),
        (
            {"mechanism": "gaussian", "noise_multiplier": 0.0},
            None,
            "epsilon infinite, because one sample can change it without bound",
        ),
        ({"mechanism": "silent", "noise_multiplier": "inf"}, None, "silent: epsilon at most 0 for"),
        ({}, None, "epsilon unknown, no release is recorded yet"),
        ({}, {**ROWS, "epsilon": [None] * 3}, "epsilon unknown, dp-accounting was not installed"),
    ],
)
def test_what_is_infinite_or_unknown_is_said_so(tmp_path: Path, change: Any, rows: Any, words: str) -> None:
    summary, _, _ = texts(run_with(tmp_path / "run", TOLD | change, rows))
    assert words in summary["privacy"]
    assert "metadata only" in summary["privacy"]


def test_noise_on_the_model_has_its_own_epsilon_and_both_have_one(tmp_path: Path) -> None:
    rows = {**ROWS, "model_epsilon": [2.0, 0.0, 3.0], "whole_epsilon": [2.5, 0.0, 3.7]}
    told = {**TOLD, "model_noise_multiplier": 4.0, "model_why": "", "whole_why": ""}
    summary, _, _ = texts(run_with(tmp_path / "run", told, rows))
    wanted = "model: epsilon at most 3 for one client; both together: epsilon at most 3.7 for one sample"
    assert wanted in summary["privacy"]


def test_why_an_epsilon_of_the_model_is_infinite_is_said(tmp_path: Path) -> None:
    rows = {**ROWS, "model_epsilon": [float("inf")] * 3, "whole_epsilon": [2.5, 0.0, 3.7]}
    told = {**TOLD, "model_noise_multiplier": 4.0, "model_why": "Oort reacts", "whole_why": ""}
    summary, _, _ = texts(run_with(tmp_path / "run", told, rows))
    wanted = "model: epsilon infinite, because Oort reacts, for one client; both together: epsilon at most 3.7"
    assert wanted in summary["privacy"]


@pytest.mark.parametrize("told", [None, 3, {}, {**TOLD, "noise_multiplier": "much"}])
def test_runs_that_do_not_say_are_left_out(tmp_path: Path, told: Any) -> None:
    summary, _, page = texts(run_with(tmp_path / "run", told))
    assert "privacy" not in summary
    assert "Privacy of the metadata" not in page


def test_a_comparison_has_a_line_per_method_if_any_has_noise(comparison_folder: Path) -> None:
    assert "Privacy" not in texts(comparison_folder)[1]
    for method in ("fedavg+1t", "fedbalancer"):
        for folder in (comparison_folder / method).glob("seed-*"):
            manifest = json.loads((folder / "manifest.json").read_text())
            told = TOLD if method == "fedbalancer" else {**TOLD, "mechanism": "none", "noise_multiplier": 0.0}
            (folder / "manifest.json").write_text(json.dumps({**manifest, "privacy": told}))
            pl.DataFrame(ROWS).write_parquet(folder / "privacy.parquet")
    table = texts(comparison_folder)[1]
    assert "- fedavg+1t: none: epsilon infinite" in table
    assert "- fedbalancer: histogram: epsilon at most 1.68" in table
