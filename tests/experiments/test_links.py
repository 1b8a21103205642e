"""Symbolic links inside a run folder: refused, and what they point to stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.experiments.comparison import compare, run_comparison
from fedbalancer.experiments.execute import resume, run
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.reporting import write_report


def tiny(out: Path, *, overwrite: bool = False) -> None:
    run("synthetic", "fedavg+1t", rounds=1, users=4, out=out, overwrite=overwrite)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def move_behind_link(path: Path, elsewhere: Path) -> None:
    """Put a thing elsewhere, and a link in its place."""
    if path.exists():
        shutil.move(path, elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "mine.txt").write_text("precious")
    return folder


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/journal.jsonl", "log.jsonl", ".lock", "rounds.parquet"])
@pytest.mark.parametrize("go_on", [lambda out: resume(out, budget_s=1e4), lambda out: tiny(out, overwrite=True)])
def test_a_run_writes_through_no_link(tmp_path: Path, elsewhere: Path, name: str, go_on: Callable[[Path], Any]) -> None:
    out = tmp_path / "r"
    tiny(out)
    move_behind_link(out / name, elsewhere)
    before = contents(elsewhere)
    with pytest.raises(RunFolderError, match=rf"{name} is a symbolic link to"):
        go_on(out)
    assert contents(elsewhere) == before


def test_a_checkpoint_that_is_a_link_is_not_removed_elsewhere(tmp_path: Path, elsewhere: Path) -> None:
    out = tmp_path / "r"
    tiny(out)
    (elsewhere / "tmp-1").mkdir()
    (out / "checkpoint" / "tmp-0").symlink_to(elsewhere / "tmp-1")
    with pytest.raises(RunFolderError, match="symbolic link"):
        resume(out)
    assert (elsewhere / "tmp-1").is_dir()


def test_a_report_writes_through_no_link(tmp_path: Path, elsewhere: Path) -> None:
    out = tmp_path / "r"
    tiny(out)
    (out / "figures").symlink_to(elsewhere / "figures")
    (elsewhere / "page").write_text("precious")
    (out / "report.html").symlink_to(elsewhere / "page")
    before = contents(elsewhere)
    with pytest.raises(RunFolderError, match="figures is a symbolic link"):
        write_report(out)
    (out / "figures").unlink()
    write_report(out)
    assert contents(elsewhere) == before
    assert not (out / "report.html").is_symlink()


@pytest.mark.parametrize("name", ["fedavg+1t", "fedavg+1t/seed-0", ".shared-results"])
def test_a_comparison_writes_through_no_link(tmp_path: Path, elsewhere: Path, name: str) -> None:
    out = tmp_path / "c"
    compare("synthetic", ["fedavg+1t"], 1, extend=1, rounds=1, users=4, out=out, jobs=1, workers=1)
    move_behind_link(out / name, elsewhere)
    before = contents(elsewhere)
    with pytest.raises(RunFolderError, match="symbolic link"):
        run_comparison(ComparisonPlan.read(out), out, resumed=True, jobs=1)
    assert contents(elsewhere) == before
