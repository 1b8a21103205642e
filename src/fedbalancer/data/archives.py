"""Archives, unpacked without trust: nothing they hold may land outside the folder that it is meant for."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath, PureWindowsPath

from fedbalancer.errors import BadData

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
_LITTER = "__MACOSX"
_UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError, NotImplementedError)


def is_archive(name: str) -> bool:
    """Whether a file of that name is to be unpacked. By name, as some data files are archives by content (`.npz`)."""
    return name.lower().endswith(ZIP_SUFFIXES + TAR_SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into a folder; an archive that is damaged, too large or reaches outside is `BadData`."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if archive.name.lower().endswith(ZIP_SUFFIXES):
            _unzip(archive, folder)
        else:
            _untar(archive, folder)
    except _UNREADABLE as error:
        raise BadData(f"{archive} cannot be unpacked: {error}; fetch it again") from error
    shutil.rmtree(folder / _LITTER, ignore_errors=True)


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        for member in members:
            if _escapes(member.filename):
                raise BadData(f"{archive} holds {member.filename!r}, a path outside of it; do not use this archive")
        _check_room(archive, sum(member.file_size for member in members), folder)
        file.extractall(folder)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        members = file.getmembers()
        for member in members:
            if _escapes(member.name):
                raise BadData(f"{archive} holds {member.name!r}, a path outside of it; do not use this archive")
        _check_room(archive, sum(member.size for member in members), folder)
        file.extractall(folder, filter="data")  # refuses links that lead outside, and devices


def _escapes(name: str) -> bool:
    """Whether a path leaves the folder it is joined to, on any system."""
    windows = PureWindowsPath(name)
    return bool(windows.drive or windows.root) or PurePosixPath(name).is_absolute() or ".." in windows.parts


def _check_room(archive: Path, needed_bytes: int, folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise BadData(
            f"{archive} unpacks to {needed_bytes:,} bytes, but {folder} has room for {free_bytes:,}; make room first"
        )
