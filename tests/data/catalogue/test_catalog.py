"""Data are listed, counted and checked."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import faketask
import numpy as np
import pytest
from faketask import FOLDER, ONE, TWO, write

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.data import TASKS, Task, TaskEntry
from fedbalancer.data.catalogue import catalog
from fedbalancer.data.catalogue.catalog import (
    DiskUsage,
    check_all,
    count_facts,
    get_source,
    get_sources,
    inspect,
    iterate_sources,
    load_facts,
    measure_files,
)


def test_every_task_of_the_registry_has_sound_sources() -> None:
    for task in TASKS:
        sources = get_sources(task)
        assert len({source.variant for source in sources}) == len(sources), f"{task}: two variants of one name"
        for source in sources:
            assert source.task == task
            assert source.files, f"{task} {source.variant} names no files"
            assert source.title
            assert source.licence
            assert source.citation
            assert all(not file.startswith("/") and ".." not in file.split("/") for file in source.files)
            assert len(source.sha256) in (0, len(source.urls))
            assert all(url.startswith("https://") for url in source.urls)
        if sources:
            assert sources[0].official, f"{task}: the official source comes first"
            assert sources[0].urls or sources[0].by_hand, f"{task}: nobody says how to get {sources[0].variant}"


def test_the_demo_needs_no_files() -> None:
    assert get_sources("watch") == get_sources("synthetic") == get_sources("my_task.toml") == ()
    with pytest.raises(BadSetting, match="task 'watch' has no data files"):
        get_source("watch")


def test_a_task_of_your_own_may_have_sources_too() -> None:
    assert get_sources("faketask:load") == faketask.SOURCES
    assert get_source("faketask:load") is faketask.FOLDER
    assert get_source("faketask:load", "one") is faketask.ONE
    with pytest.raises(UnknownName, match="did you mean folder"):
        get_source("faketask:load", "foldr")
    with pytest.raises(BadData, match="no module 'absent_module'"):
        get_sources("absent_module:load")


def test_unknown_tasks_suggest_one() -> None:
    with pytest.raises(UnknownName, match="unknown task 'wacth'; did you mean watch"):
        get_sources("wacth")


def test_the_catalog_has_a_row_per_source(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"fake": TaskEntry("fake", "a fake", "faketask:load"), "watch": TASKS["watch"]}
    monkeypatch.setattr(catalog, "TASKS", MappingProxyType(entries))
    assert list(iterate_sources()) == [*(("fake", source) for source in faketask.SOURCES), ("watch", None)]


@pytest.fixture
def fake_only(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of the fake task alone; gives the data folder."""
    entries = MappingProxyType({"fake": TaskEntry("fake", "a fake", "faketask:load"), "watch": TASKS["watch"]})
    from fedbalancer.data import registry

    for each in (catalog, registry):
        monkeypatch.setattr(each, "TASKS", entries)
    return folders[0]


def test_facts_are_counted_over_all_clients() -> None:
    clients = {name: (np.zeros((size, 2)), np.full(size, size)) for name, size in (("a", 1), ("b", 4))}
    task = Task(clients=clients, test=(np.zeros((3, 2)), np.array([9, 9, 9])), model=lambda: None)
    facts = count_facts(task, "mine", "paper")
    assert (facts.users, facts.samples, facts.test_samples, facts.labels) == (2, 5, 3, 3)


def test_samples_of_sliced_clients_are_looked_at(folders: tuple[Path, Path]) -> None:
    write(folders[0] / "one.npz", bad=True)
    with pytest.raises(BadData, match="client 'a0' has a NaN or infinite feature in sample 0"):
        inspect("faketask:load", ONE)


def test_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"123")
    (tmp_path / "d").write_bytes(b"4567")
    found = measure_files([tmp_path / "a", tmp_path / "d", tmp_path / "absent"])
    assert (found.files, found.size_bytes) == (2, 7)
    assert found.changed_ns == (tmp_path / "d").stat().st_mtime_ns
    assert measure_files([]) == DiskUsage(0, 0, 0)


def rows() -> dict[str, catalog.Row]:
    return {row.variant: row for row in catalog.list_data()}


def test_the_listing_says_what_is_here_and_what_is_known(fake_only: Path) -> None:
    found = rows()
    assert {variant: row.present for variant, row in found.items()} == {
        "folder": "no",
        "two": "no",
        "one": "no",
        "": "yes",
    }
    assert (found["one"].kind, found["two"].kind, found[""].kind) == ("stand-in", "official", "built in")
    assert (found[""].task, found[""].users, found[""].samples) == ("watch", 16, 2861)
    assert (found["one"].users, found["one"].size_bytes, found["one"].licence) == (None, None, "free")
    size = write(fake_only / "one.npz").stat().st_size
    write(fake_only / "fake" / "a.npz")
    found = rows()
    assert (found["one"].present, found["one"].size_bytes, found["one"].users) == ("yes", size, None)
    assert found["two"].present == "in part"
    check_all("fake", "small")
    assert (rows()["one"].users, rows()["one"].samples, rows()["one"].scale) == (3, 9, "small")
    check_all("fake", "paper")
    assert rows()["one"].scale == "paper"
    write(fake_only / "one.npz", users=5)
    assert rows()["one"].users is None, "what was counted is of another file"


def test_checks_go_on_after_an_error(fake_only: Path) -> None:
    write(fake_only / "one.npz")
    write(fake_only / "fake" / "a.npz")
    (fake_only / "fake-set").mkdir()
    (fake_only / "fake-set" / "x.npz").write_text("nothing")
    found = {check.variant: check for check in check_all()}
    assert found["one"].facts is not None
    assert found["one"].facts.users == 3
    assert "x.npz is no file of the fake task" in found["folder"].error
    assert "needs fake/b.npz" in found["two"].error
    assert found[""].facts is not None
    assert all("\n" not in check.error for check in found.values())
    assert {FOLDER.variant, TWO.variant, ONE.variant, ""} == set(found)


def test_a_task_of_which_nothing_is_here_is_told(fake_only: Path) -> None:
    with pytest.raises(MissingData, match=r"fake-set or .*a\.npz.*; run: fedbalancer data get fake"):
        check_all("fake")
    assert [check.task for check in check_all()] == ["watch"]


def test_a_spoilt_note_is_no_fact(fake_only: Path, folders: tuple[Path, Path]) -> None:
    write(fake_only / "one.npz")
    check_all("fake")
    for note in (folders[1] / "facts").iterdir():
        note.write_text('{"task": 3}')
    assert load_facts(ONE, measure_files(ONE.paths)) is None
