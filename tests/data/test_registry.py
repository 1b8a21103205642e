"""Tasks are found by name, and your own by where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.data import SCALES, TASKS, load_task

MODULE = """
import numpy as np
from fedbalancer.data import Task

def plain(users=None):
    x, y = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    return Task(clients={f"c{n}": (x, y) for n in range(users or 2)}, test=(x, y), model=print, name="mine")

def full(scale, users):
    return plain(3 if scale == "paper" else 1)

ready = plain(5)
number = 3
def wrong(): return "text"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_tasks.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_tasks"


def test_every_entry_has_a_title_and_its_own_name() -> None:
    assert {"watch", "synthetic"} <= set(TASKS)
    for name, entry in TASKS.items():
        assert entry.name == name
        assert entry.title
        assert "\n" not in entry.title
        assert entry.loader.count(":") == 1


def test_a_task_is_loaded_by_name() -> None:
    task = load_task("synthetic", scale="paper", users=7)
    assert task.name == "synthetic"
    assert len(task.sizes) == 7


def test_your_own_task_is_loaded_from_where_it_is(own: str) -> None:
    assert len(load_task(f"{own}:plain", users=4).clients) == 4
    assert len(load_task(f"{own}:full", scale="paper").clients) == 3
    assert len(load_task(f"{own}:ready").clients) == 5


def test_unknown_names_suggest_the_nearest(own: str) -> None:
    with pytest.raises(UnknownName, match="unknown task 'wacth'; did you mean watch"):
        load_task("wacth")
    with pytest.raises(UnknownName, match="unknown scale 'papers'; did you mean paper"):
        load_task("watch", scale="papers")
    with pytest.raises(UnknownName, match="'plane'; did you mean plain"):
        load_task(f"{own}:plane")
    assert SCALES == ("small", "paper")


def test_what_is_no_task_is_told(own: str) -> None:
    with pytest.raises(BadData, match="no module 'absent_module'"):
        load_task("absent_module.tasks:load")
    with pytest.raises(BadData, match="own_tasks:number has type int"):
        load_task(f"{own}:number")
    with pytest.raises(BadData, match="own_tasks:wrong has type str"):
        load_task(f"{own}:wrong")
    with pytest.raises(BadData, match="not of the form"):
        load_task(":load")


def test_a_missing_import_inside_your_module_is_not_hidden(own: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_task("own_broken:load")
