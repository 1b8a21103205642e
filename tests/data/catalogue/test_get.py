"""`data get`: files are downloaded, checked and imported; or kept for the next try; or an error says what to do."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faketask import FOLDER, ONE, TWO, write
from loopback import Site, serving

from fedbalancer.core.errors import BadData, MissingData, RunFolderError
from fedbalancer.core.files import FolderLock
from fedbalancer.data.catalogue.install import Unreachable, download_data

TASK = "faketask:load"


def silent(name: str):  # type: ignore[no-untyped-def]
    return lambda done, total: None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    one = write(tmp_path / "web" / "one.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "web" / "inner.zip", "w") as inner:
        inner.write(tmp_path / "web" / "one.npz", "fake-set/x.npz")
    with zipfile.ZipFile(tmp_path / "web" / "outer.zip", "w") as outer:
        outer.write(tmp_path / "web" / "inner.zip", "set.zip")
    files = {"/get/37": one, "/a+set.zip": (tmp_path / "web" / "outer.zip").read_bytes(), "/page.npz": b"<html>"}
    with serving(Site(files)) as site:
        yield site


def test_a_file(folders: tuple[Path, Path], site: Site) -> None:
    sha256 = hashlib.sha256(site.files["/get/37"]).hexdigest()
    names: list[str] = []
    facts = download_data(
        TASK, replace(ONE, urls=(f"{site.url}/get/37",), sha256=(sha256,)), lambda n: names.append(n) or silent(n)
    )
    assert facts.users == 3
    assert names == ["one.npz"]
    assert [path.name for path in folders[0].iterdir()] == ["one.npz"], "no downloads are left"


def test_an_archive_in_an_archive(folders: tuple[Path, Path], site: Site) -> None:
    assert download_data(TASK, replace(FOLDER, urls=(f"{site.url}/a+set.zip",)), silent).users == 3
    assert sorted(path.name for path in folders[0].rglob("*")) == ["fake-set", "x.npz"]


def test_two_files_of_which_one_is_missing(folders: tuple[Path, Path], site: Site) -> None:
    source = replace(TWO, urls=(f"{site.url}/get/37", f"{site.url}/second"))
    with pytest.raises(
        Unreachable, match=r"second answers 404 .*save it as .*fake/b\.npz and run: .*downloads/fake-two "
    ):
        download_data(TASK, source, silent)
    site.files["/second"] = site.files["/get/37"]
    assert download_data(TASK, source, silent).users == 3
    assert [path for path, _ in site.asked].count("/get/37") == 1, "the first was kept"


def test_a_broken_download_can_be_asked_for_again(folders: tuple[Path, Path], site: Site) -> None:
    source = replace(ONE, urls=(f"{site.url}/get/37",))
    site.cuts = [100, 100, 100]
    with pytest.raises(Unreachable, match="cannot be downloaded"):
        download_data(TASK, source, silent)
    assert not source.is_present
    assert download_data(TASK, source, silent).users == 3


def test_without_a_network_the_line_names_file_place_and_command(folders: tuple[Path, Path], site: Site) -> None:
    source = replace(FOLDER, urls=(f"{site.url}/gone.zip",))
    with pytest.raises(Unreachable) as caught:
        download_data(TASK, source, silent)
    place = folders[0] / "downloads" / "fake-folder" / "gone.zip"
    assert f"{site.url}/gone.zip" in str(caught.value)
    assert f"save it as {place}" in str(caught.value)
    assert f"fedbalancer data import {TASK} {place} --variant folder" in str(caught.value)
    place.write_bytes(site.files["/a+set.zip"])
    assert download_data(TASK, source, silent).users == 3, "and the same command works as well"


@pytest.mark.parametrize("sha256", [(), (hashlib.sha256(b"<html>").hexdigest(),)])
def test_a_page_instead_of_the_data_is_not_kept(
    folders: tuple[Path, Path], site: Site, sha256: tuple[str, ...]
) -> None:
    with pytest.raises(BadData, match="no file of the fake task"):
        download_data(TASK, replace(ONE, urls=(f"{site.url}/page.npz",), sha256=sha256), silent)
    assert list(folders[0].iterdir()) == []


def test_a_wrong_checksum(folders: tuple[Path, Path], site: Site) -> None:
    with pytest.raises(BadData, match="is not the expected file"):
        download_data(TASK, replace(ONE, urls=(f"{site.url}/get/37",), sha256=("0" * 64,)), silent)
    assert list(folders[0].iterdir()) == []


def test_what_needs_a_form_is_told(folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingData, match=r"form of its makers; then run: fedbalancer data import .* PATH"):
        download_data(TASK, TWO, silent)
    assert not folders[0].exists()
    with pytest.raises(MissingData, match=r"get one\.npz yourself"):
        download_data(TASK, ONE, silent)


def test_one_download_at_a_time(folders: tuple[Path, Path], site: Site) -> None:
    folder = folders[0] / "downloads" / "fake-one"
    folder.mkdir(parents=True)
    lock = FolderLock(folder)
    try:
        with pytest.raises(RunFolderError, match="another process"):
            download_data(TASK, replace(ONE, urls=(f"{site.url}/get/37",)), silent)
    finally:
        lock.release()
