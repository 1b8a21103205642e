"""Data are found by name, checked and imported completely or not at all."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import faketask
import pytest
from faketask import FOLDER, ONE, TWO, write

from fedbalancer.core.errors import BadData, BadSetting, RunFolderError
from fedbalancer.core.files import FolderLock
from fedbalancer.data.catalogue import install
from fedbalancer.data.catalogue.catalog import Facts, load_facts, measure_files
from fedbalancer.data.catalogue.install import copy_path, hard_link_path, import_data, link_path, locate

TASK = "faketask:load"


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_of_any_name_is_copied_to_the_name_that_is_expected(folders: tuple[Path, Path], tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.npz", users=3)
    facts = import_data(TASK, ONE, mine, copy_path)
    assert facts == Facts(TASK, "one", "small", users=3, samples=2 + 3 + 4, test_samples=2, labels=2)
    assert everything(folders[0]) == ["one.npz"]
    assert (folders[0] / "one.npz").read_bytes() == mine.read_bytes()
    assert not (folders[0] / "one.npz").is_symlink()
    assert len(faketask.load(variant="one").clients) == 3
    assert load_facts(ONE, measure_files(ONE.paths)) == facts


def test_a_folder_is_copied_whole(folders: tuple[Path, Path], tmp_path: Path) -> None:
    write(tmp_path / "mine" / "x.npz", 2)
    write(tmp_path / "mine" / "y.npz", 1, first="b")
    assert import_data(TASK, FOLDER, tmp_path / "mine", copy_path).users == 3
    assert everything(folders[0]) == ["fake-set", "fake-set/x.npz", "fake-set/y.npz"]


def test_several_files_from_a_folder_and_one_by_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = write(tmp_path / "in" / "a.npz", 2), write(tmp_path / "in" / "b.npz", 1, first="b")
    assert import_data(TASK, TWO, tmp_path / "in", copy_path).users == 3
    assert everything(folders[0]) == ["fake", "fake/a.npz", "fake/b.npz"]
    (folders[0] / "fake" / "a.npz").unlink()
    assert import_data(TASK, TWO, a, copy_path).users == 3, "the other file was there"
    assert everything(folders[0]) == ["fake", "fake/a.npz", "fake/b.npz"]
    (folders[0] / "fake" / "a.npz").unlink()
    with pytest.raises(BadData, match=r"b\.npz has no a\.npz; give a folder with a\.npz and b\.npz"):
        import_data(TASK, TWO, b, copy_path)


def test_an_archive_is_unpacked(folders: tuple[Path, Path], tmp_path: Path) -> None:
    file = write(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.write(file, "some folder/x.npz")
    assert import_data(TASK, FOLDER, tmp_path / "mine.zip", copy_path).users == 3
    assert everything(folders[0]) == ["fake-set", "fake-set/x.npz"]
    with pytest.raises(BadSetting, match="omit --link"):
        import_data(TASK, FOLDER, tmp_path / "mine.zip", link_path, overwrite=True)
    assert everything(folders[0]) == ["fake-set", "fake-set/x.npz"]


def test_a_link_leaves_the_data_where_it_is(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine" / "x.npz")
    monkeypatch.chdir(tmp_path)
    import_data(TASK, FOLDER, Path("mine"), link_path)
    assert (folders[0] / "fake-set").is_symlink()
    monkeypatch.chdir("/")
    assert len(faketask.load(variant="folder").clients) == 3


def test_a_hard_link_is_the_same_file(folders: tuple[Path, Path], tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.npz")
    import_data(TASK, ONE, mine, hard_link_path)
    assert os.path.samefile(mine, folders[0] / "one.npz")


def test_systems_without_links_copy(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    monkeypatch.setattr(os, "link", refuse)
    assert import_data(TASK, ONE, write(tmp_path / "mine.npz"), hard_link_path).users == 3


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    ("content", "words"),
    [("text", "no file of the fake task"), ("nan", "client 'a0' has a NaN"), ("keyless", "cannot be read: KeyError")],
)
def test_bad_data_leaves_nothing_behind(
    folders: tuple[Path, Path], tmp_path: Path, there_before: bool, overwrite: bool, content: str, words: str
) -> None:
    mine = tmp_path / "mine.npz"
    if content == "nan":
        write(mine, bad=True)
    elif content == "keyless":
        import numpy as np

        np.savez(mine, other=np.zeros(3))
    else:
        mine.write_text("not what it seems")
    if there_before:
        write(folders[0] / "fake" / "a.npz")
    before = everything(folders[0]) if there_before else None
    with pytest.raises(BadData, match=words):
        import_data(TASK, ONE, mine, copy_path, overwrite=overwrite)
    assert mine.exists()
    assert folders[0].exists() == there_before
    if there_before:
        assert everything(folders[0]) == before


def test_an_error_names_the_file_that_was_given(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.npz").write_text("half")
    with pytest.raises(BadData) as caught:
        import_data(TASK, FOLDER, tmp_path / "mine", copy_path)
    assert str(caught.value).startswith(f"{tmp_path / 'mine' / 'x.npz'} is no file")


def test_bad_data_does_not_replace_good(folders: tuple[Path, Path], tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good.npz"), write(tmp_path / "bad.npz", bad=True)
    import_data(TASK, ONE, good, copy_path)
    with pytest.raises(BadData):
        import_data(TASK, ONE, bad, copy_path, overwrite=True)
    assert (folders[0] / "one.npz").read_bytes() == good.read_bytes()


def test_what_is_there_is_replaced_only_when_told(folders: tuple[Path, Path], tmp_path: Path) -> None:
    import_data(TASK, ONE, write(tmp_path / "first.npz", 2), copy_path)
    second = write(tmp_path / "second.npz", 4)
    with pytest.raises(BadSetting, match=r"already exists at .*one\.npz; add --overwrite"):
        import_data(TASK, ONE, second, copy_path)
    assert import_data(TASK, ONE, second, copy_path, overwrite=True).users == 4
    write(tmp_path / "x" / "x.npz", 2)
    write(tmp_path / "y" / "y.npz", 3)
    import_data(TASK, FOLDER, tmp_path / "x", copy_path)
    assert import_data(TASK, FOLDER, tmp_path / "y", copy_path, overwrite=True).users == 3
    assert everything(folders[0]) == ["fake-set", "fake-set/y.npz", "one.npz"]


def test_a_failure_between_two_files_puts_everything_back(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, users in (("old", 2), ("new", 5)):
        write(tmp_path / name / "a.npz", users)
        write(tmp_path / name / "b.npz", 1, first="b")
    import_data(TASK, TWO, tmp_path / "old", copy_path)
    before = {path: path.read_bytes() for path in TWO.paths}
    real, done = os.replace, []

    def replace(source: Path, target: Path) -> None:
        done.append(target)
        if target == TWO.paths[1] and done.count(target) == 1:  # a aside, a in place, b aside, then this
            raise OSError("the disk is gone")
        real(source, target)

    monkeypatch.setattr(install.os, "replace", replace)
    with pytest.raises(BadSetting, match="the disk is gone"):
        import_data(TASK, TWO, tmp_path / "new", copy_path, overwrite=True)
    assert {path: path.read_bytes() for path in TWO.paths} == before
    assert everything(folders[0]) == ["fake", "fake/a.npz", "fake/b.npz"]


def test_what_a_killed_import_left_is_cleared_away(folders: tuple[Path, Path], tmp_path: Path) -> None:
    write(folders[0] / ".importing-dead" / "new" / "one.npz")
    import_data(TASK, ONE, write(tmp_path / "mine.npz"), copy_path)
    assert everything(folders[0]) == ["one.npz"]


def test_one_import_at_a_time(folders: tuple[Path, Path], tmp_path: Path) -> None:
    import_data(TASK, ONE, write(tmp_path / "mine.npz"), copy_path)
    (place,) = (folders[1] / "locks").iterdir()
    lock = FolderLock(place)
    try:
        with pytest.raises(RunFolderError, match="another process is writing there"):
            import_data(TASK, ONE, tmp_path / "mine.npz", copy_path, overwrite=True)
    finally:
        lock.release()


def test_mistakes_with_the_path_are_told(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="nowhere does not exist"):
        import_data(TASK, ONE, tmp_path / "nowhere", copy_path)
    with pytest.raises(BadSetting, match="contains the data folder"):
        import_data(TASK, FOLDER, tmp_path, copy_path)
    write(folders[0] / "one.npz")
    with pytest.raises(BadSetting, match="already in the data folder; run: fedbalancer data check"):
        import_data(TASK, ONE, folders[0] / "one.npz", copy_path, overwrite=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match=r"has no a\.npz, b\.npz"):
        import_data(TASK, TWO, tmp_path / "empty", copy_path)


def test_a_data_folder_that_cannot_be_written_is_told(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folders[0].write_text("a file")
    with pytest.raises(BadSetting, match="must be a writable folder"):
        import_data(TASK, ONE, write(tmp_path / "mine.npz"), copy_path)


def test_all_files_reach_the_disk_at_once(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(install.os, "sync", lambda: synced.append(True), raising=False)
    write(tmp_path / "mine" / "x.npz")
    write(tmp_path / "mine" / "y.npz", first="b")
    assert import_data(TASK, FOLDER, tmp_path / "mine", copy_path).users == 6
    assert synced == [True]


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
