"""The right variant of a task's data is chosen, and errors name missing files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedbalancer.core.errors import MissingData, UnknownName
from fedbalancer.data import Source, choose_source
from fedbalancer.data.source import find_source

OFFICIAL = Source(
    "t", "real", "the real one", ("real/x.json", "real/images"), "free", "they", urls=("https://a/b.zip",)
)
STAND_IN = Source("t", "small", "a stand-in", ("small.npz",), "free", "others", official=False)
SOURCES = (OFFICIAL, STAND_IN)


def put(data: Path, *names: str) -> None:
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("")


def test_the_official_one_is_preferred_and_a_stand_in_taken_where_it_is_alone(folders: tuple[Path, Path]) -> None:
    put(folders[0], "small.npz")
    assert choose_source(SOURCES) is STAND_IN
    put(folders[0], "real/x.json")
    assert choose_source(SOURCES) is STAND_IN, "half of the official files are not enough"
    (folders[0] / "real" / "images").mkdir()
    assert choose_source(SOURCES) is OFFICIAL
    assert choose_source(SOURCES, "small") is STAND_IN


def test_a_variant_that_is_asked_for_is_never_exchanged(folders: tuple[Path, Path]) -> None:
    put(folders[0], "small.npz", "real/x.json")
    with pytest.raises(
        MissingData, match=r"variant 'real' of task 't' needs real/images in .*data get t --variant real"
    ):
        choose_source(SOURCES, "real")


def test_nothing_there_names_files_folder_and_command(folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingData) as caught:
        choose_source(SOURCES)
    for word in ("real/x.json", str(folders[0]), "fedbalancer data get t", "FEDBALANCER_DATA"):
        assert word in str(caught.value)
    with pytest.raises(MissingData, match="data import t PATH"):
        choose_source((STAND_IN,))


def test_an_unknown_variant_suggests_one() -> None:
    with pytest.raises(UnknownName, match="unknown variant of t 'smal'; did you mean small"):
        choose_source(SOURCES, "smal")
    assert find_source(SOURCES) is OFFICIAL
    assert find_source(SOURCES, "small") is STAND_IN


def test_what_a_download_is_called() -> None:
    assert OFFICIAL.downloads == ("b.zip",)
    book = replace(STAND_IN, files=("plays/all.txt",), urls=("https://host/files/100-0.txt?download=1",))
    assert book.downloads == ("plays/all.txt",), "a single file has the name that the task looks for"
    assert replace(book, urls=("https://host/My%20Set.tar.gz",)).downloads == ("My Set.tar.gz",)
    kept = replace(book, files=("devices.zip",), urls=("https://host/devices.zip",))
    assert kept.downloads == ("devices.zip",)
    assert (OFFICIAL.kind, STAND_IN.kind) == ("official", "stand-in")


def test_an_address_cannot_choose_a_folder() -> None:
    sneaky = replace(OFFICIAL, urls=("https://host/..%2F..%2Fsneaky.zip",))
    assert sneaky.downloads == ("sneaky.zip",)
