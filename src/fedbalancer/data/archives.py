"""Archives, unpacked without trust: nothing they hold may land outside the folder that it is meant for."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
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
        _check(archive, [(member.filename, member.file_size) for member in file.infolist()], folder)
        file.extractall(folder)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        _check(archive, [(member.name, member.size) for member in file.getmembers()], folder)
        file.extractall(folder, filter="data")  # refuses links that lead outside, and devices


def _check(archive: Path, members: Sequence[tuple[str, int]], folder: Path) -> None:
    """Refuse what would land outside the folder, or not fit on its disk."""
    for name, _ in members:
        if _escapes(name):
            raise BadData(f"{archive} holds {name!r}, a path outside of it; do not use this archive")
    needed_bytes, free_bytes = sum(size_bytes for _, size_bytes in members), shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise BadData(
            f"{archive} unpacks to {needed_bytes:,} bytes, but {folder} has room for {free_bytes:,}; make room first"
        )


def _escapes(name: str) -> bool:
    """Whether a path leaves the folder it is joined to, on any system."""
    windows = PureWindowsPath(name)
    return bool(windows.drive or windows.root) or PurePosixPath(name).is_absolute() or ".." in windows.parts
