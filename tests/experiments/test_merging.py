"""Comparison folders of several machines are one comparison, or the message says by name what differs."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import tinytask
from experiments.test_addition import contents
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import FolderLock
from fedbalancer.experiments.consistency import RunRecord, find_differences
from fedbalancer.experiments.merging import merge_folders
from fedbalancer.store import ComparisonFile
from fedbalancer.store.contents import add_checksum

METHODS = ["fedavg+1t", "fedavg+wfa", "fedbalancer"]
SMALL: Any = {"jobs": 1, "workers": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods and seeds at once; each seed alone; and on seed 0 each method with FedAvg+1T."""
    at = tmp_path_factory.mktemp("merging")
    fb.compare(tinytask.load(), METHODS, [0, 1], out=at / "whole", **SMALL)
    for seed in (0, 1):
        fb.compare(tinytask.load(), METHODS, [seed], out=at / f"seed-{seed}", **SMALL)
    for method in METHODS[1:]:
        fb.compare(tinytask.load(), ["fedavg+1t", method], [0], out=at / method, **SMALL)
    return at


def copy_of(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def change_manifest(run: Path, **fields: Any) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps(add_checksum({**json.loads(path.read_text()), **fields})))


def test_seeds_of_several_machines_are_the_comparison_of_one(made: Path, tmp_path: Path) -> None:
    before = contents(made / "seed-0")
    table = fb.merge([made / "seed-0", made / "seed-1"], tmp_path / "out" / "c")
    out = tmp_path / "out" / "c"
    assert contents(out) == contents(made / "whole")
    assert table.to_json() == json.loads((made / "whole" / "summary.json").read_text())
    for name in ("summary.json", "table.md"):
        assert (out / name).read_bytes() == (made / "whole" / name).read_bytes()
    assert (out / "report.html").is_file()
    assert ComparisonFile.read(out) == ComparisonFile.read(made / "whole")
    assert contents(made / "seed-0") == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c"]


def test_a_run_that_several_folders_have_is_taken_once_and_the_longer_one_wins(made: Path, tmp_path: Path) -> None:
    """FedAvg+1T ran longer beside a method that set a higher target."""
    heights = {
        name: len(contents(made / name)["fedavg+1t/seed-0/rounds.parquet"]) for name in ("fedavg+wfa", "fedbalancer")
    }
    for order in (METHODS[1:], METHODS[:0:-1]):
        out = tmp_path / order[0]
        fb.merge([made / name for name in order], out)
        assert len(contents(out)["fedavg+1t/seed-0/rounds.parquet"]) == max(heights.values())
        assert ComparisonFile.read(out).methods == ("fedavg+1t", *order)
    fb.compare(tinytask.load(), add=tmp_path / "fedavg+wfa", **SMALL)  # runs whatever a higher target still needs
    assert contents(tmp_path / "fedavg+wfa") == contents(made / "seed-0")


def test_a_grid_with_gaps_is_named_and_filled_by_an_addition(made: Path, tmp_path: Path) -> None:
    merged = merge_folders([made / "seed-1", made / "fedavg+wfa"], tmp_path / "c")
    assert merged.missing == (("fedbalancer", 0),)
    table = fb.compare(tinytask.load(), add=tmp_path / "c", **SMALL)
    assert [len(score.scores) for score in table.methods] == [2, 2, 2]
    assert contents(tmp_path / "c") == contents(made / "whole")


def test_two_runs_of_one_method_and_seed_with_different_bytes_are_a_conflict(made: Path, tmp_path: Path) -> None:
    other = copy_of(made / "seed-0", tmp_path / "other")
    swapped, source = other / "fedbalancer" / "seed-0", made / "seed-1" / "fedbalancer" / "seed-1"
    files = json.loads((source / "manifest.json").read_text())["files"]
    for name in files:
        shutil.copy(source / name, swapped / name)
    change_manifest(swapped, files=files)
    words = f"fedbalancer seed 0 differs between {made / 'seed-0'} and {other}"
    with pytest.raises(RunFolderError, match=re.escape(words)):
        fb.merge([made / "seed-0", other], tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 5}, ("rounds is 6 in", "5 in")),
        ({"rule": "paper"}, ("rule is fair in", "paper in")),
        ({"extend": 1.0}, ("extend is 2.0 in", "1.0 in")),
        ({"targets": (0.5,)}, ("targets is (1.0, 0.95, 0.9) in", "(0.5,) in")),
        ({"budgets_s": {0: 1.5, 1: 2.0}}, ("the budget of seed 0 is", "1.5 s in")),
    ],
)
def test_different_rules_are_a_conflict_by_name(
    changes: Any, words: tuple[str, str], made: Path, tmp_path: Path
) -> None:
    other = copy_of(made / "seed-1", tmp_path / "other")
    replace(ComparisonFile.read(other), **changes).write(other)
    refused_merge([made / "seed-0", other], tmp_path / "c", *words)


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("settings", {"learning_rate": 0.1}, ("learning_rate is 0.05 in", "0.1 in")),
        ("settings", {"clients.alpha": 9.0}, ("fedbalancer: clients.alpha is 0.5 in", "9.0 in")),
        ("spec", {"backend": "plain"}, ("backend is fast in", "plain in")),
        ("spec", {"settings": {"w": 3}}, ("w is not set in", "3 in")),
        ("task", {"name": "other"}, ("task name is tiny in", "other in")),
    ],
)
def test_different_settings_are_a_conflict_by_name(
    field: str, changes: Any, words: tuple[str, str], made: Path, tmp_path: Path
) -> None:
    other = copy_of(made / "seed-1", tmp_path / "other")
    run = other / "fedbalancer" / "seed-1"
    change_manifest(run, **{field: {**json.loads((run / "manifest.json").read_text())[field], **changes}})
    refused_merge([made / "seed-0", other], tmp_path / "c", *words)


def refused_merge(folders: list[Path], out: Path, *words: str) -> None:
    with pytest.raises(RunFolderError, match="cannot be merged") as caught:
        fb.merge(folders, out, mixed=True)
    for each in words:
        assert each in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_versions_and_processors_are_a_conflict_unless_it_is_accepted(made: Path, tmp_path: Path) -> None:
    other = copy_of(made / "seed-1", tmp_path / "other")
    for method in METHODS:
        run = other / method / "seed-1"
        manifest = json.loads((run / "manifest.json").read_text())
        kernels = {**manifest["kernels"], "processor": "abacus"}
        change_manifest(run, versions={**manifest["versions"], "torch": "0.1"}, kernels=kernels)
    with pytest.raises(RunFolderError, match=r"torch is .* 0\.1 in .*processor is .* abacus in .*--mixed"):
        fb.merge([made / "seed-0", other], tmp_path / "c")
    merged = merge_folders([made / "seed-0", other], tmp_path / "c", mixed=True)
    assert len(merged.mixtures) == 2
    assert len(merged.comparison.seeds) == 2


def test_damaged_runs_and_busy_folders_are_refused(made: Path, tmp_path: Path) -> None:
    other = copy_of(made / "seed-1", tmp_path / "other")
    table = other / "fedavg+1t" / "seed-1" / "evals.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"fedavg\+1t.seed-1 is damaged \(evals.parquet\)"):
        fb.merge([made / "seed-0", other], tmp_path / "c")
    lock = FolderLock(made / "seed-1")
    try:
        with pytest.raises(RunFolderError, match="another process is writing there"):
            fb.merge([made / "seed-0", made / "seed-1"], tmp_path / "c")
    finally:
        lock.release()
    assert os.listdir(tmp_path) == ["other"]


def test_places_that_do_not_fit_are_refused(made: Path, tmp_path: Path) -> None:
    one = made / "seed-0"
    with pytest.raises(BadSetting, match="at least one"):
        fb.merge([], tmp_path / "c")
    with pytest.raises(BadSetting, match="appears twice"):
        fb.merge([one, one], tmp_path / "c")
    for inside in (one, one / "c"):
        with pytest.raises(BadSetting, match="choose another --out"):
            fb.merge([one, made / "seed-1"], inside)
    with pytest.raises(RunFolderError, match="holds no comparison"):
        fb.merge([one, tmp_path / "nowhere"], tmp_path / "c")
    with pytest.raises(RunFolderError, match="already holds a comparison"):
        fb.merge([one], made / "seed-1")


def test_overwriting_keeps_files_of_others(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    fb.merge([made / "whole"], out)
    (out / "notes.txt").write_text("mine")
    fb.merge([made / "fedavg+wfa"], out, overwrite=True)
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["fedavg+1t", "fedavg+wfa", "figures"]
    assert (out / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


VALUES = st.one_of(st.integers(-3, 3), st.floats(-1, 1), st.text("ab", max_size=2), st.none())
SETTINGS = st.dictionaries(st.sampled_from(["w", "epochs", "deadline.guard_s", "learning_rate"]), VALUES)


@given(SETTINGS, SETTINGS, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_two_runs_differ_exactly_in_the_settings_that_differ(
    first: dict[str, Any], second: dict[str, Any], seed: int
) -> None:
    def record(source: str, values: dict[str, Any], number: int) -> RunRecord:
        spec = {"task": "synthetic", "seed": number, "settings": {**values, "eval_every_s": number / 50}}
        return RunRecord(source, "fedbalancer", number, float(number), {"spec": spec})

    named = {text.split(" is ")[0] for text in find_differences([record("a", first, seed), record("b", second, 2)])}
    missing = object()
    assert named == {
        name for name in {*first, *second} if first.get(name, missing) != second.get(name, missing)
    }  # fmt: skip
