"""Archives come out as they are, and never outside."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data import archives
from fedbalancer.data.archives import is_archive, unpack


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def tarred(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize(("pack", "name"), [(zipped, "a.zip"), (tarred, "a.tar.gz"), (tarred, "a.TGZ")])
def test_what_went_in_comes_out(tmp_path: Path, pack, name: str) -> None:  # type: ignore[no-untyped-def]
    archive = pack(tmp_path / name, {"set/train/x.txt": "1", "set/y.txt": "2", "__MACOSX/set/._y.txt": "litter"})
    unpack(archive, tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"set/train/x.txt", "set/y.txt"}
    assert (tmp_path / "out" / "set" / "y.txt").read_text() == "2"


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "C:\\evil", "..\\evil", "\\evil"])
def test_nothing_lands_outside(tmp_path: Path, pack, name: str) -> None:  # type: ignore[no-untyped-def]
    archive = pack(tmp_path / ("a.zip" if pack is zipped else "a.tar"), {"fine": "1", name: "2"})
    with pytest.raises(BadData, match="a path outside the target folder"):
        unpack(archive, tmp_path / "deep" / "out")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {archive.name}


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"Q": "1"})
    archive.write_bytes(archive.read_bytes().replace(b"Q", b"\0"))
    with pytest.raises(BadData, match="a member without a name"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("target", ["../../outside", "beside"])
def test_links_and_devices_are_refused_wherever_they_lead(tmp_path: Path, kind: bytes, target: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("inside")
        link.type, link.linkname = kind, target
        archive.addfile(link)
    with pytest.raises(BadData, match=r"holds 'inside', which is (a link|neither a file)"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_path_too_long_to_be_resolved_writes_nothing_outside(tmp_path: Path) -> None:
    """CVE-2025-4517: a chain of links so long that the filter of `tarfile` no longer sees where it leads."""
    deep, steps = "d" * 247, "abcdefghijklmnop"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        path = ""
        for step in steps:
            folder, link = tarfile.TarInfo(f"{path}{deep}"), tarfile.TarInfo(f"{path}{step}")
            folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, deep
            archive.addfile(folder)
            archive.addfile(link)
            path += f"{deep}/"
        end = tarfile.TarInfo("/".join(steps) + "/" + "l" * 254)
        end.type, end.linkname = tarfile.SYMTYPE, "../" * len(steps)
        archive.addfile(end)
        out = tarfile.TarInfo("escape")
        out.type, out.linkname = tarfile.SYMTYPE, f"{end.name}/../../../written"
        archive.addfile(out)
        file = tarfile.TarInfo("escape")
        file.size = 4
        archive.addfile(file, io.BytesIO(b"evil"))
    with pytest.raises(BadData, match="which is a link"):
        unpack(tmp_path / "a.tar", tmp_path / "deep" / "er" / "out")
    assert not list(tmp_path.rglob("written"))


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.xz", "a.tar.bz2", "header.tar.gz"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    zeros = bytes(archives.ALWAYS_BYTES + 2**24)
    if name == "a.zip":
        zipped(tmp_path / name, {"x": zeros.decode()})
    else:
        with tarfile.open(tmp_path / name, f"w:{name.rpartition('.')[2]}") as archive:  # type: ignore[call-overload]
            member = tarfile.TarInfo("x")
            member.size = len(zeros)
            if name == "header.tar.gz":  # which a reader takes into memory whole
                member.type = tarfile.XHDTYPE
            archive.addfile(member, io.BytesIO(zeros))
    with pytest.raises(BadData, match="200 times its size"):
        unpack(tmp_path / name, tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_folder_and_a_file_of_one_name_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="cannot be unpacked into"):
        unpack(tarred(tmp_path / "a.tar.gz", {"x": "1", "x/y": "2"}), tmp_path / "out")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar"])
def test_no_archive_or_half_of_one_is_told(tmp_path: Path, name: str) -> None:
    whole = zipped(tmp_path / "whole.zip", {"x": "1" * 1000}) if name == "a.zip" else tarred(
        tmp_path / "whole.tar.gz", {"x": "1" * 100_000})  # fmt: skip
    for content in (b"<html>not found</html>", b"", whole.read_bytes()[:-60]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadData, match="cannot be unpacked"):
            unpack(tmp_path / name, tmp_path / "out")


def test_a_spoilt_member_is_told(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"x": "some text " * 100})
    data = bytearray(archive.read_bytes())
    data[45] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(BadData, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")


def test_an_archive_larger_than_the_disk_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(tmp_path / "a.zip", {"x": "1" * 10_000})
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda folder: type("usage", (), {"free": 9_999}))
    with pytest.raises(BadData, match=r"unpacks to 10,000 bytes or more, but .* has only 9,999"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out" / "x").exists()


def test_what_is_to_be_unpacked() -> None:
    assert all(map(is_archive, ("a.zip", "A.ZIP", "a.tar.gz", "a.tgz", "a.tar.xz")))
    assert not any(map(is_archive, ("a.npz", "a.json.xz", "a.txt", "zip", "a.gz")))
