"""A comparison follows the paper's rules: one budget per seed, one target per seed, and runs that go on if needed."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from runs import tinytask

import fedbalancer as fb
from fedbalancer.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.runs.compare import run_comparison
from fedbalancer.runs.jobs import JobEvent
from fedbalancer.runs.plan import ComparisonPlan
from fedbalancer.runs.spec import RunSpec

METHODS = ["fedavg+1t", "fedavg+wfa", "fedbalancer"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "out"
    fb.compare(tinytask.load(), METHODS, seeds=2, out=folder, jobs=2)
    return folder


def test_the_budget_is_the_clock_of_fedavg_1t_after_the_tasks_rounds(compared: Path) -> None:
    budgets = json.loads((compared / "comparison.json").read_text())["budgets_s"]
    for seed in (0, 1):
        alone = fb.run(tinytask.load(), "fedavg+1t", seed=seed)
        assert budgets[str(seed)] == alone.rounds["end_s"][-1]
        inside = pl.read_parquet(compared / "fedavg+1t" / f"seed-{seed}" / "rounds.parquet")
        assert inside["end_s"][:6].to_list() == alone.rounds["end_s"].to_list()


def test_every_run_covers_its_budget_and_stays_within_the_extension(compared: Path) -> None:
    document = json.loads((compared / "comparison.json").read_text())
    for method in METHODS:
        for seed in (0, 1):
            rounds = pl.read_parquet(compared / method / f"seed-{seed}" / "rounds.parquet")
            budget = document["budgets_s"][str(seed)]
            assert rounds["end_s"][-1] >= budget
            assert rounds["start_s"][-1] < 2 * budget


def test_the_folder_holds_all_that_is_promised(compared: Path) -> None:
    for name in ("summary.json", "table.md", "report.html", "comparison.json"):
        assert (compared / name).stat().st_size > 0
    assert list((compared / "figures").glob("*.png"))
    summary = json.loads((compared / "summary.json").read_text())
    assert set(summary["methods"]) == set(METHODS)
    best = [summary["methods"][name]["speedup"] for name in ("fedavg+1t", "fedavg+wfa")]
    assert any(score["mean"] > 0 for score in best)


def test_a_failing_run_does_not_take_the_others_along(tmp_path: Path) -> None:
    plan = ComparisonPlan.make(RunSpec(task=tinytask.load()), ["fedavg+1t", "prox+1t"], 1)
    events: list[JobEvent] = []
    broken = tmp_path / "out" / "prox+1t" / "seed-0"
    broken.mkdir(parents=True)
    (broken / "stranger.txt").write_text("not ours")
    result = run_comparison(plan, tmp_path / "out", resumed=True, listen=events.append, jobs=1)
    assert [event.key for event in result.failed] == [("prox+1t", 0)]
    assert result.outcomes["fedavg+1t", 0].kind == "done"
    assert (broken / "stranger.txt").read_text() == "not ours"


def test_occupied_folders_and_bad_plans_are_refused(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="already holds a comparison"):
        fb.compare(tinytask.load(), METHODS, seeds=1, out=compared)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="other files"):
        fb.compare(tinytask.load(), METHODS, seeds=1, out=tmp_path)
    with pytest.raises(BadSetting, match="twice"):
        fb.compare(tinytask.load(), ["fedavg+1t", "fedavg+1t"], seeds=1)
    with pytest.raises(BadSetting, match="at least one"):
        fb.compare(tinytask.load(), [], seeds=1)
    with pytest.raises(UnknownName, match="did you mean fedbalancer"):
        fb.compare(tinytask.load(), ["fedbalancr"], seeds=1)
