"""`write_report` leaves the files that a comparison folder promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbalancer.reporting import results, score_folder, scores, write_report
from fedbalancer.reporting.page import page_html
from fedbalancer.reporting.results import load
from fedbalancer.reporting.summary import run_markdown


def test_a_comparison_gets_summary_table_figures_and_page(comparison_folder: Path) -> None:
    paths = write_report(comparison_folder)
    assert paths.summary == comparison_folder / "summary.json"
    assert json.loads(paths.summary.read_text()) == score_folder(comparison_folder).to_json()
    assert "| fedbalancer |" in paths.table.read_text(encoding="utf-8")
    assert paths.page.stat().st_size < 500_000
    assert len(paths.figures) == 10
    assert all(path.is_file() for path in paths.figures)


def test_the_stamp_reaches_all_files(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    folder = make_comparison(tmp_path / "c", methods=("fedavg+1t", "fedbalancer"), seeds=(0,))
    end, start = score_folder(folder), score_folder(folder, stamp="start")
    paths = write_report(folder, stamp="start")
    assert json.loads(paths.summary.read_text()) == start.to_json() != end.to_json()
    assert "start (as in the authors" in paths.page.read_text(encoding="utf-8").replace("&#39;", "'")


def test_a_report_loads_every_run_once_and_scores_once(
    comparison_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, scored = [], []
    load_run, score = results.load_run, scores.score
    monkeypatch.setattr(results, "load_run", lambda *given: loaded.append(given[0]) or load_run(*given))
    monkeypatch.setattr(scores, "score", lambda *given, **named: scored.append(1) or score(*given, **named))
    report = write_report(comparison_folder)
    assert len(loaded) == len(set(loaded)) == 15
    assert len(scored) == 1
    assert report.comparison is not None
    assert report.comparison.to_json() == json.loads(report.summary.read_text())


def test_a_report_made_again_is_the_same_and_leaves_nothing_else(run_folder: Path) -> None:
    first = {path: path.read_bytes() for path in _files(write_report(run_folder))}
    before = sorted(path.name for path in run_folder.rglob("*"))
    second = {path: path.read_bytes() for path in _files(write_report(run_folder))}
    assert first == second
    assert sorted(path.name for path in run_folder.rglob("*")) == before


def test_a_run_gets_its_own_report(run_folder: Path) -> None:
    paths = write_report(run_folder)
    summary = json.loads(paths.summary.read_text())
    assert (summary["method"], summary["seed"], summary["status"]) == ("fedbalancer", 3, "done")
    assert 0 < summary["accuracy"] <= summary["best_accuracy"] < 1
    assert "| method | fedbalancer |" in paths.table.read_text(encoding="utf-8")
    assert len(paths.figures) == 8


@pytest.mark.parametrize("status", ["running", "failed", "stopped"])
def test_a_run_that_is_not_done_says_so(run_folder: Path, status: str) -> None:
    manifest = json.loads((run_folder / "manifest.json").read_text())
    (run_folder / "manifest.json").write_text(json.dumps({**manifest, "status": status, "why": "by hand"}))
    results = load(run_folder)
    assert f"(status: {status})" in page_html(results, None)
    assert f"| status | {status} |" in run_markdown(results)


def test_importing_the_report_loads_no_plotting() -> None:
    code = "import sys, fedbalancer.reporting; print([m for m in ('matplotlib', 'scipy') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def _files(paths: object) -> list[Path]:
    found = vars(paths)
    return [found["summary"], found["table"], found["page"], *found["figures"]]
