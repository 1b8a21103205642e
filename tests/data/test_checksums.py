"""A checksum is of the content, and is remembered only while nothing changes."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from fedbalancer.data import checksum


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    seen: list[str] = []
    real = hashlib.file_digest

    def digest(file, name):  # type: ignore[no-untyped-def]
        seen.append(Path(file.name).name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    return seen


def test_of_a_file(folders: tuple[Path, Path], tmp_path: Path, reads: list[str]) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert checksum(file) == hashlib.sha256(b"abc").hexdigest()
    assert checksum(file) == hashlib.sha256(b"abc").hexdigest()
    assert reads == ["a"], "the second time it is remembered"


def test_a_change_that_keeps_size_and_date_is_seen(folders: tuple[Path, Path], tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"abc")
    before, stat = checksum(file), file.stat()
    other.write_bytes(b"xyz")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(other, file)
    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    assert checksum(file) != before


def test_of_a_folder_it_is_of_names_and_contents(folders: tuple[Path, Path], tmp_path: Path, reads: list[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "deep").mkdir(parents=True)
    (first / "a").write_text("1")
    (first / "deep" / "b").write_text("2")
    shutil.copytree(first, second)
    assert checksum(first) == checksum(second)
    assert checksum(first) == checksum(first)
    assert sorted(reads) == ["a", "a", "b", "b"]
    (second / "a").rename(second / "c")
    assert checksum(first) != checksum(second)


def test_many_files_leave_one_note(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(50):
        (folder / str(number)).write_text(str(number))
    checksum(folder)
    assert len(list((folders[1] / "checksums").iterdir())) == 1


def test_a_spoilt_note_or_a_cache_that_cannot_be_written_does_no_harm(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    right = checksum(file)
    (note,) = (folders[1] / "checksums").iterdir()
    note.write_text("half a note")
    assert checksum(file) == right
    monkeypatch.setenv("FEDBALANCER_CACHE", str(file))
    assert checksum(file) == right
