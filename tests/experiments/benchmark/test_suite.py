"""The suites: they stay as they are, and their cells are complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbalancer
from fedbalancer.core.errors import MissingData, UnknownName
from fedbalancer.data import load_task
from fedbalancer.data.registry import TASKS
from fedbalancer.experiments.benchmark.run import find_cells
from fedbalancer.experiments.benchmark.suite import SUITES, Suite, find_suite, hash_code, hash_data

DIGESTS = {"tta-1": "2d12da10d1d0b219031dc28b6407776c663ea98d90931b24699d5f413b536c60"}


def test_a_suite_with_results_never_changes() -> None:
    assert {name: suite.digest for name, suite in SUITES.items()} == DIGESTS, "define a new suite instead"


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_a_suite_has_every_task_and_scenario(suite: Suite) -> None:
    names = [cell.name for cell in suite.cells]
    assert len(set(names)) == len(names)
    assert {cell.task for cell in suite.cells} >= TASKS.keys() - {"watch", "synthetic"}
    assert len([cell for cell in suite.cells if cell.traces and (cell.users or 0) >= 300]) == 2
    assert any(cell.settings.get("label_noise") == 0.2 for cell in suite.cells)
    assert any(cell.settings.get("clients_per_round") == 100 for cell in suite.cells)
    assert any(cell.devices for cell in suite.cells)
    assert not set(suite.seeds) & set(suite.tuning_seeds)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown suite"):
        find_suite("tta-0")
    with pytest.raises(UnknownName, match="unknown cell of tta-1"):
        find_suite("tta-1").cell("digits")


def test_a_cell_without_its_recordings_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"needs the recorded availability devices\.zip"):
        find_suite("tta-1").cell("phones-day").base("fedavg+1t")


def test_cells_without_data_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path))
    lines: list[str] = []
    suite = find_suite("tta-1")
    assert [cell.name for cell in find_cells(suite, lines.append)] == ["watch"], "the cell with included data"
    assert len(lines) == len(suite.cells) - 1
    with pytest.raises(MissingData):
        find_cells(replace(suite, cells=suite.cells[:2]))


def test_fewer_trials_and_seeds_start_with_the_same_ones() -> None:
    suite = find_suite("tta-1")
    few = suite.reduced(trials=3, tuning_seeds=1, seeds=2)
    assert (few.trials, few.tuning_seeds, few.seeds) == (3, suite.tuning_seeds[:1], suite.seeds[:2])
    assert suite.reduced() == suite


def test_the_hash_of_data_depends_on_labels_and_features() -> None:
    task = load_task("synthetic", users=3)
    again = load_task("synthetic", users=3)
    assert hash_data(task) == hash_data(again)
    name = min(again.clients)
    x, y = again.clients[name]
    for changed in ((x, np.roll(y, 1)), (x * 2, y)):
        assert hash_data(replace(task, clients={**task.clients, name: changed})) != hash_data(task)


def test_the_hash_of_the_code_ignores_what_does_not_run(tmp_path: Path) -> None:
    for name in ("core/a.py", "cli/b.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")
    before = hash_code(tmp_path)
    (tmp_path / "cli" / "b.py").write_text("2")
    assert hash_code(tmp_path) == before
    (tmp_path / "core" / "a.py").write_text("2")
    assert hash_code(tmp_path) != before
    assert len(hash_code(Path(fedbalancer.__file__).parent)) == 64
