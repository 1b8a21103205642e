"""Safe unpacking of untrusted archives: no member may be written outside the target folder."""

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
"""An archive may unpack to `ALWAYS_BYTES` plus `MOST_TIMES` its own size. Real data sets need far less, and an archive
bomb needs more."""
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
    """Return whether a file of this name is an archive. By name, because some data files are archives too (`.npz`)."""
    return name.lower().endswith(ZIP_SUFFIXES + TAR_SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive.

    Args:
        archive: Zip or tar file.
        folder: Target folder.

    Raises:
        BadData: If the archive is damaged or too large, has paths outside the folder, or contains anything besides
            files and folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if archive.name.lower().endswith(ZIP_SUFFIXES):
            _unzip(archive, folder)
        else:
            _untar(archive, folder)
    except _UNREADABLE as error:
        raise BadData(f"{archive} cannot be unpacked: {error}; download it again") from error
    except OSError as error:
        raise BadData(f"{archive} cannot be unpacked into {folder}: {error}") from error
    shutil.rmtree(folder / _LITTER, ignore_errors=True)


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        limit = _Limit(archive, folder)
        for member in file.infolist():
            limit.add_member(member.filename, member.file_size)
        file.extractall(folder)  # noqa: S202 - of a zip, which makes no links; all paths are checked above


def _untar(archive: Path, folder: Path) -> None:
    """Unpack files and folders one by one. Without links, no path can lead outside (compare CVE-2025-4517)."""
    _check_stream(archive, folder)
    limit = _Limit(archive, folder)
    with tarfile.open(archive) as file:
        for member in file:
            limit.add_member(member.name, member.size)
            if not member.isreg() and not member.isdir():
                kind = "a link" if member.issym() or member.islnk() else "neither a file nor a folder"
                raise BadData(f"{archive} holds {member.name!r}, which is {kind}; pack the archive without it")
        for member in file:
            _write_member(file, member, folder / member.name)


def _write_member(file: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = file.extractfile(member)
    assert content is not None  # only files get here
    with target.open("wb") as out:
        shutil.copyfileobj(content, out)


def _check_stream(archive: Path, folder: Path) -> None:
    """Check the size of the decompressed archive before any header is parsed, because headers may be bombs too."""
    opener = next((opener for suffixes, opener in _STREAMS if archive.name.lower().endswith(suffixes)), None)
    if opener is None:
        return
    limit = _Limit(archive, folder)
    with opener(archive) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            limit.add_bytes(len(chunk))


class _Limit:
    """The limit on the unpacked size: the free space of the disk, and a multiple of the size of the archive."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self._used_bytes, self._free_bytes = 0, shutil.disk_usage(folder).free
        self._most_bytes = ALWAYS_BYTES + MOST_TIMES * archive.stat().st_size

    def add_member(self, name: str, size_bytes: int) -> None:
        """Count a member, and refuse a path outside the folder."""
        if not name:
            raise BadData(f"{self.archive} holds a member without a name; download it again")
        if _escapes(name):
            raise BadData(f"{self.archive} holds {name!r}, a path outside the target folder; do not use this archive")
        self.add_bytes(size_bytes)

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes, and refuse them if the limit is exceeded."""
        self._used_bytes += size_bytes
        if self._used_bytes > self._free_bytes:
            raise BadData(
                f"{self.archive} unpacks to {self._used_bytes:,} bytes or more, but the disk of {self.folder} has only "
                f"{self._free_bytes:,} bytes free"
            )
        if self._used_bytes > self._most_bytes:
            raise BadData(
                f"{self.archive} unpacks to more than {MOST_TIMES} times its size, like an archive bomb; if you trust "
                "it, unpack it yourself and import the folder"
            )


def _escapes(name: str) -> bool:
    """Return whether a path leads outside the folder, on any operating system."""
    windows = PureWindowsPath(name)
    return bool(windows.drive or windows.root) or PurePosixPath(name).is_absolute() or ".." in windows.parts
