"""Archives, unpacked without trust: nothing they hold may land outside the folder that it is meant for."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from fedbalancer.core.errors import BadData

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
ALWAYS_BYTES = 64 * 2**20
MOST_TIMES = 200
"""An archive may unpack to so many bytes, and beyond them to so many times its own size. Real data sets stay far below;
a bomb has to be above, as its file is small."""
_LITTER = "__MACOSX"
_CHUNK_BYTES = 2**20
_STREAMS: tuple[tuple[tuple[str, ...], Any], ...] = (
    ((".gz", ".tgz"), gzip.open),
    ((".bz2",), bz2.open),
    ((".xz", ".txz"), lzma.open),
)
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    RuntimeError,
    ValueError,
)


def is_archive(name: str) -> bool:
    """Whether a file of that name is to be unpacked. By name, as some data files are archives by content (`.npz`)."""
    return name.lower().endswith(ZIP_SUFFIXES + TAR_SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into a folder of its own; an archive that is damaged, too large, reaches outside or holds anything but
    files and folders is `BadData`."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if archive.name.lower().endswith(ZIP_SUFFIXES):
            _unzip(archive, folder)
        else:
            _untar(archive, folder)
    except _UNREADABLE as error:
        raise BadData(f"{archive} cannot be unpacked: {error}; fetch it again") from error
    except OSError as error:
        raise BadData(f"{archive} cannot be unpacked into {folder}: {error}") from error
    shutil.rmtree(folder / _LITTER, ignore_errors=True)


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        room = _Room(archive, folder)
        for member in file.infolist():
            room.take(member.filename, member.file_size)
        file.extractall(folder)  # noqa: S202 - of a zip, which makes no links; all paths are checked above


def _untar(archive: Path, folder: Path) -> None:
    """Member by member, files and folders only: without links, no path can lead elsewhere than it says, which the
    filters of `tarfile` could be made to believe (CVE-2025-4517)."""
    _check_stream(archive, folder)
    room = _Room(archive, folder)
    with tarfile.open(archive) as file:
        for member in file:
            room.take(member.name, member.size)
            if not member.isreg() and not member.isdir():
                kind = "a link" if member.issym() or member.islnk() else "neither a file nor a folder"
                raise BadData(f"{archive} holds {member.name!r}, which is {kind}; pack it again without it")
        for member in file:
            _write_member(file, member, folder / member.name)


def _write_member(file: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = file.extractfile(member)
    assert content is not None  # only a file has come this far
    with target.open("wb") as out:
        shutil.copyfileobj(content, out)


def _check_stream(archive: Path, folder: Path) -> None:
    """Count what the whole archive decompresses to, before anything in it is believed: a header may be a bomb too."""
    opener = next((opener for suffixes, opener in _STREAMS if archive.name.lower().endswith(suffixes)), None)
    if opener is None:
        return
    room = _Room(archive, folder)
    with opener(archive) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            room.take_bytes(len(chunk))


class _Room:
    """How much an archive may still unpack to: what its disk has free, and so many times its own size."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self._taken_bytes, self._free_bytes = 0, shutil.disk_usage(folder).free
        self._most_bytes = ALWAYS_BYTES + MOST_TIMES * archive.stat().st_size

    def take(self, name: str, size_bytes: int) -> None:
        """Make room for a member, or refuse one that is too much or would land outside."""
        if _escapes(name):
            raise BadData(f"{self.archive} holds {name!r}, a path outside of it; do not use this archive")
        self.take_bytes(size_bytes)

    def take_bytes(self, size_bytes: int) -> None:
        """Make room for so many bytes, or refuse them."""
        self._taken_bytes += size_bytes
        if self._taken_bytes > self._free_bytes:
            raise BadData(
                f"{self.archive} unpacks to {self._taken_bytes:,} bytes or more, but {self.folder} has room for "
                f"{self._free_bytes:,}; make room first"
            )
        if self._taken_bytes > self._most_bytes:
            raise BadData(
                f"{self.archive} unpacks to more than {MOST_TIMES} times its size, as only a bomb does; if you know "
                "it, unpack it yourself and give the folder"
            )


def _escapes(name: str) -> bool:
    """Whether a path leaves the folder it is joined to, on any system."""
    windows = PureWindowsPath(name)
    return bool(windows.drive or windows.root) or PurePosixPath(name).is_absolute() or ".." in windows.parts
