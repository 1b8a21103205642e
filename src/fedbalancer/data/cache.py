"""The cache of prepared data, and checksums of files.

A cache entry is a folder named by the checksum of its key. It is written under a temporary name and renamed when it is
complete, so a partly written entry is never used. If several processes need the same entry, one of them makes it and
the others wait. An entry with a missing, truncated or changed file is made again. Checksums are computed again only
when the size or the times of a file have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import CACHE, cache_folder, sync_directory, write_synced, write_text

_VERSION = 2
_META = "meta.json"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Named arrays and what is to be known about them (JSON values)."""

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]


def load_or_prepare(task: str, key: Mapping[str, Any], make: Callable[[], Prepared]) -> Prepared:
    """What `make` gives, made once per key; the arrays are memory-mapped, so that processes share them.

    `key` holds all that the result depends on: checksums of the sources, and settings.
    """
    name = hashlib.sha256(json.dumps([_VERSION, key], sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder() / "prepared" / f"{task}-{name}"
    found = _read(folder)
    if found is not None:
        return found
    with _only_one_maker(folder):
        found = _read(folder)  # somebody else may have made it while we waited
        if found is None:
            prepared = make()
            with _writable():
                _write(folder, prepared)
            found = _read(folder)
    if found is None:
        raise BadSetting(f"{folder} was written but cannot be read; set {CACHE} to a folder on a healthy disk")
    return found


@contextmanager
def _only_one_maker(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache entry. The system releases it when its holder ends, in whatever way."""
    lock = FileLock(folder.parent / f".{folder.name}.lock", mode=0o666, thread_local=False)
    with _writable():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        _remove_leftovers(folder)
        yield
    finally:
        lock.release()


@contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadSetting(
            f"the cache folder {cache_folder()} cannot be written: {error}; set {CACHE} to one that can"
        ) from error


def _remove_leftovers(folder: Path) -> None:
    """What killed makers of this entry left; only for who holds its lock."""
    for leftover in folder.parent.glob(f".making-{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write(folder: Path, prepared: Prepared) -> None:
    temporary = Path(mkdtemp(prefix=f".making-{folder.name}-", dir=folder.parent))
    try:
        for name, array in prepared.arrays.items():
            _save(temporary / f"{name}.npy", array)
        sizes = {name: (temporary / f"{name}.npy").stat().st_size for name in sorted(prepared.arrays)}
        digests = {name: digest(temporary / f"{name}.npy") for name in sizes}
        meta = json.loads(json.dumps(prepared.meta))  # as it will be read: its keys are text
        document = {"arrays": sizes, "sha256": digests, "meta": meta, "meta_sha256": _sha256(meta)}
        write_synced(temporary / _META, json.dumps(document).encode())
        sync_directory(temporary)
        _set_aside(folder, temporary)
        temporary.rename(folder)
        sync_directory(folder.parent)
    except OSError:
        if _read(folder) is None:  # else another process was faster: its result is the same
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("xb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _set_aside(folder: Path, temporary: Path) -> None:
    """Make room where a damaged entry lies; whoever still has its arrays mapped keeps them."""
    if folder.exists() and _read(folder) is None:
        damaged = Path(mkdtemp(prefix=f"{temporary.name}-", dir=folder.parent))
        try:
            folder.rename(damaged / "damaged")
        finally:
            shutil.rmtree(damaged, ignore_errors=True)


def _read(folder: Path) -> Prepared | None:
    """The entry; None if there is none or it is damaged."""
    try:
        document = json.loads((folder / _META).read_text(encoding="utf-8"))
        files = {name: (folder / f"{name}.npy", size) for name, size in document["arrays"].items()}
        if any(path.stat().st_size != size for path, size in files.values()):
            return None
        if any(checksum(path) != document["sha256"][name] for name, (path, _) in files.items()):
            return None
        if _sha256(document["meta"]) != document["meta_sha256"]:
            return None
        arrays = {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, (path, _) in files.items()}
        return Prepared(arrays, document["meta"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _sha256(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files; remembered while size and times stay."""
    is_folder = path.is_dir()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if is_folder else [path]
    note = _note(files, path)  # of before: a file that changes while it is read is not remembered under its new state
    known = ""
    with suppress(OSError):
        known = note.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{64}", known):
        return known
    parts = [(file.relative_to(path).as_posix(), digest(file)) for file in files]
    found = hashlib.sha256(json.dumps(parts).encode()).hexdigest() if is_folder else parts[0][1]
    with suppress(OSError):  # then it is computed again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, found)
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file as it is now."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(files: Sequence[Path], path: Path) -> Path:
    """Where the checksum of these files, as they are now, is remembered: one note for a folder, however many files.

    The time of the last change of the inode is looked at as well: a copy that kept its date is another file.
    """
    seen = hashlib.sha256(str(path.resolve()).encode())
    for file in files:
        stat = file.stat()
        state = [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        seen.update(json.dumps(state).encode())
    return cache_folder() / "checksums" / seen.hexdigest()[:32]
