"""A comparison grows: what is added has the settings of the folder, and only what is missing is run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.contracts import DeadlinePolicy
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.experiments.comparison import run_comparison
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.store import ComparisonFile

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors")
ONE: Any = {"jobs": 1, "workers": 1}


def contents(folder: Path) -> dict[str, bytes]:
    """The results of all runs, without what names machines and times."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes() for name in FILES for path in folder.glob(f"*/*/{name}")
    }
    assert found
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods on three seeds, compared at once."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    fb.compare(tinytask.load(), ["fedavg+1t", "fedbalancer", "fedavg+wfa"], [0, 1, 7], out=folder, **ONE)
    return folder


def test_methods_and_seeds_that_are_added_give_the_comparison_of_all_of_them(whole: Path, tmp_path: Path) -> None:
    """Also where a method that is added raises the target, so that earlier runs continue."""
    out = tmp_path / "c"
    fb.compare(tinytask.load(), ["fedavg+1t", "fedbalancer"], 1, out=out, **ONE)
    first = (out / "fedavg+1t" / "seed-0" / "log.jsonl").read_text()
    fb.compare(tinytask.load(), seeds=[1, 7], add=out, **ONE)
    table = fb.compare(tinytask.load(), "fedavg+wfa", add=str(out), **ONE)
    assert contents(out) == contents(whole)
    assert table.to_json() == json.loads((whole / "summary.json").read_text())
    assert (out / "summary.json").read_text() == (whole / "summary.json").read_text()
    assert (out / "fedavg+1t" / "seed-0" / "log.jsonl").read_text().startswith(first), "it was not run again"
    assert ComparisonFile.read(out) == ComparisonFile.read(whole)


def test_nothing_is_run_if_nothing_is_missing(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(whole, out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*")}
    fb.compare(tinytask.load(), ["fedbalancer"], [7], add=out, **ONE)
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*/*")} == before


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ({}, {"rounds": 5}, "rounds is 6 in {out}, 5 in what is added"),
        ({}, {"settings": {"learning_rate": 0.1}}, "learning_rate is 0.05 in {out}, 0.1 in what is added"),
        ({}, {"settings": {"w": 3}}, "w is not set in {out}, 3 in what is added"),
        ({}, {"backend": "plain"}, "backend is fast in {out}, plain in what is added"),
        ({}, {"rule": "paper"}, "rule is fair in {out}, paper in what is added"),
        ({}, {"extend": 3.0}, "extend is 2.0 in {out}, 3.0 in what is added"),
        ({}, {"targets": [0.5]}, "targets is [1.0, 0.95, 0.9] in {out}, [0.5] in what is added"),
        ({"name": "other"}, {}, "task name is tiny in {out}, other in what is added"),
        ({"epochs": 2}, {}, "epochs is 5 in {out}, 2 in what is added"),
        ({"model_bytes": 10**7}, {}, "the budget of seed 0 is"),
    ],
)
def test_what_differs_from_the_folder_is_named_and_nothing_is_run(
    task: dict[str, Any], options: dict[str, Any], words: str, whole: Path
) -> None:
    before = (whole / "comparison.json").read_bytes()
    with pytest.raises(BadSetting, match=re.escape(words.format(out=whole))):
        fb.compare(tinytask.load(**task), seeds=[9], add=whole, **options)
    assert (whole / "comparison.json").read_bytes() == before
    assert not list(whole.glob("*/seed-9"))


def test_a_folder_that_grows_has_no_other_place_and_must_hold_a_comparison(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="does not allow out or overwrite"):
        fb.compare(tinytask.load(), add=whole, out=tmp_path)
    with pytest.raises(BadSetting, match="does not allow out or overwrite"):
        fb.compare(tinytask.load(), add=whole, overwrite=True)
    with pytest.raises(RunFolderError, match="holds no comparison"):
        fb.compare(tinytask.load(), add=tmp_path)
    with pytest.raises(BadSetting, match="a comparison needs a task, or a folder to add to"):
        fb.compare()
    with pytest.raises(BadSetting, match="was started with a Task or Method object; pass its task"):
        fb.compare(add=whole, seeds=[9])


def test_method_objects_are_passed_again(tmp_path: Path) -> None:
    class Minute(DeadlinePolicy):
        """A deadline of the user."""

        def plan(self, setup: Any, state: Any, cohort: Any) -> tuple[float, int]:
            return 60.0, len(cohort)

    mine = fb.method("fedavg+1t", deadline=Minute(), name="mine")
    out = tmp_path / "c"
    fb.compare("synthetic", ["fedavg+1t", mine], 1, users=8, rounds=2, extend=1, out=out, **ONE)
    with pytest.raises(BadSetting, match="are Method objects; pass them in methods: mine"):
        fb.compare("synthetic", seeds=2, users=8, add=out, **ONE)
    table = fb.compare("synthetic", [mine], 2, users=8, add=out, **ONE)
    assert [score.method for score in table.methods] == ["fedavg+1t", "mine"]
    assert [seed.seed for seed in table.seeds] == [0, 1]


def test_the_second_of_two_simultaneous_additions_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "c"
    fb.compare("synthetic", ["fedavg+1t"], 1, users=8, rounds=2, extend=1, out=out, **ONE)
    before = ComparisonFile.read(out)
    fb.compare(seeds=[1], add=out, **ONE)
    plan = ComparisonPlan.make(RunSpec.from_json(before.spec), before.methods, [0, 2], 1.0)
    with pytest.raises(RunFolderError, match="was changed by another process in the meantime"):
        run_comparison(plan, out, resumed=True, before=before)
    assert ComparisonFile.read(out).seeds == (0, 1)


def test_an_addition_that_is_stopped_loses_nothing(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    fb.compare(tinytask.load(), ["fedavg+1t", "fedbalancer"], 1, out=out, **ONE)
    started = (out / "fedbalancer" / "seed-7" / "manifest.json").exists
    fb.compare(tinytask.load(), ["fedavg+wfa"], [1, 7], add=out, stopped=started, **ONE)
    assert ComparisonFile.read(out) == ComparisonFile.read(whole)
    fb.compare(tinytask.load(), add=out, **ONE)
    assert contents(out) == contents(whole)


@pytest.mark.soak
def test_an_addition_that_is_killed_is_completed_by_resume(tmp_path: Path) -> None:
    out, small = tmp_path / "c", ("--users", "8", "--rounds", "40", "--set", "checkpoint_s=0", "--extend", "1")
    start = [sys.executable, "-m", "fedbalancer"]
    quiet: Any = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    new = [*start, "compare", "synthetic", "-m", "fedavg+1t", "--seeds", "1", *small, "--jobs", "1", "--out", "c"]
    subprocess.run(new, check=True, **quiet)
    add = [*start, "compare", "--add", "c", "--seeds", "1..2", "-m", "fedavg+wfa", "--jobs", "1"]
    process = subprocess.Popen(add, **quiet)
    until = time.monotonic() + 200
    while not (out / "fedavg+1t" / "seed-1" / "manifest.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert ComparisonFile.read(out).seeds == (0, 1, 2)
    subprocess.run([*start, "resume", "c", "--jobs", "1"], check=True, env={**os.environ}, **quiet)
    fb.compare(
        "synthetic", ["fedavg+1t", "fedavg+wfa"], 3, users=8, rounds=40, extend=1, settings={"checkpoint_s": 0},
        out=tmp_path / "whole", jobs=2, workers=1,
    )  # fmt: skip
    assert contents(out) == contents(tmp_path / "whole")
