"""Files are recognised by name at any depth; a single file may have any name."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fedbalancer.data.catalogue.importing import locate


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)


def found(wanted: list[str], given: Path, tmp_path: Path, *archives: str) -> dict[str, str]:
    places = locate(wanted, given, tmp_path / "unpacked", archives)
    return {file: str(path.relative_to(tmp_path)) for file, path in places.items()}


@pytest.mark.parametrize("place", ["mine", "mine/sub", "mine/sub/fake", "mine/fake"])
def test_files_in_a_folder_are_found_by_the_end_of_their_path(tmp_path: Path, place: str) -> None:
    put(tmp_path / place / "a.json", tmp_path / place / "b.json", tmp_path / "mine" / "sub" / "c.json")
    given = tmp_path / ("mine/sub" if place == "mine/sub/fake" else "mine")
    assert found(["fake/a.json", "fake/b.json"], given, tmp_path) == {
        "fake/a.json": f"{place}/a.json",
        "fake/b.json": f"{place}/b.json",
    }


def test_equal_names_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    put(tmp_path / "in" / "train" / "all.json", tmp_path / "in" / "test" / "all.json")
    assert found(["t/train/all.json", "t/test/all.json"], tmp_path / "in", tmp_path) == {
        "t/train/all.json": "in/train/all.json",
        "t/test/all.json": "in/test/all.json",
    }


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.json")
    assert found(["a.json", "b.json"], tmp_path / "in", tmp_path) == {"a.json": "in/a.json"}
    assert found(["c.json", "b.json"], tmp_path / "in", tmp_path) == {}
    assert found(["a.json", "b.json"], tmp_path / "in" / "a.json", tmp_path) == {"a.json": "in/a.json"}


def test_a_single_thing_may_have_any_name(tmp_path: Path) -> None:
    put(tmp_path / "in" / "pg100.txt")
    assert found(["plays.txt"], tmp_path / "in" / "pg100.txt", tmp_path) == {"plays.txt": "in/pg100.txt"}
    assert found(["set"], tmp_path / "in", tmp_path) == {"set": "in"}


def test_archives_and_archives_in_them_are_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr("My Set/train/x.txt", "1")
        inner.writestr("__MACOSX/x", "litter")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as outer:
        outer.write(tmp_path / "inner.zip", "My Set.zip")
        outer.writestr("My Set.names", "about it")
    for wanted in ("My Set", "data/My Set", "another name"):
        place = locate([wanted], tmp_path / "outer.zip", tmp_path / wanted / "unpacked")[wanted]
        assert (place / "train" / "x.txt").read_text() == "1"


def test_an_archive_that_is_wanted_itself_stays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "devices.zip", "w") as archive:
        archive.writestr("x", "1")
    assert found(["devices.zip"], tmp_path / "devices.zip", tmp_path) == {"devices.zip": "devices.zip"}


def test_in_a_folder_only_the_archives_of_the_source_are_unpacked(tmp_path: Path) -> None:
    for name in ("ours", "holiday"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(f"{name}.txt", "1")
    given = tmp_path / "Downloads"
    given.mkdir()
    (tmp_path / "ours.zip").rename(given / "ours.zip")
    (tmp_path / "holiday.zip").rename(given / "holiday.zip")
    assert found(["ours.txt", "more.txt"], given, tmp_path, "ours.zip") == {"ours.txt": "unpacked/0/0/ours.txt"}
    assert not list((tmp_path / "unpacked").rglob("holiday.txt"))
