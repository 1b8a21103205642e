"""The sources of a task are those of the module it is written in."""

from __future__ import annotations

from types import MappingProxyType

import faketask
import pytest

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.data import TASKS, TaskEntry
from fedbalancer.data.catalogue import catalog as module
from fedbalancer.data.catalogue.catalog import get_source, get_sources, iterate_sources


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
    monkeypatch.setattr(module, "TASKS", MappingProxyType(entries))
    assert list(iterate_sources()) == [*(("fake", source) for source in faketask.SOURCES), ("watch", None)]
