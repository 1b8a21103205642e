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
    """Data that are ready for a task.

    Args:
        arrays: Arrays by name.
        meta: Facts about the arrays, as JSON values.
    """

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]


def load_or_prepare(task: str, key: Mapping[str, Any], make: Callable[[], Prepared]) -> Prepared:
    """Load prepared data from the cache, or make and save them. The arrays are memory-mapped, so processes share them.

    Args:
        task: Name of the task.
        key: Everything that the data depend on: checksums of the sources, and settings.
        make: Function that prepares the data.

    Raises:
        BadSetting: If the cache folder cannot be written.
    """
    name = hashlib.sha256(json.dumps([_VERSION, key], sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder() / "prepared" / f"{task}-{name}"
    entry = _read(folder)
    if entry is not None:
        return entry
    with _lock_entry(folder):
        entry = _read(folder)  # another process may have made it in the meantime
        if entry is None:
            prepared = make()
            with _explain_write_errors():
                _write(folder, prepared)
            entry = _read(folder)
    if entry is None:
        raise BadSetting(f"{folder} was written but cannot be read; set {CACHE} to a folder on another disk")
    return entry


@contextmanager
def _lock_entry(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache entry. The operating system releases it when the process ends."""
    lock = FileLock(folder.parent / f".{folder.name}.lock", mode=0o666, thread_local=False)
    with _explain_write_errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        _remove_leftovers(folder)
        yield
    finally:
        lock.release()


@contextmanager
def _explain_write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadSetting(
            f"the cache folder {cache_folder()} cannot be written: {error}; set {CACHE} to a writable folder"
        ) from error


def _remove_leftovers(folder: Path) -> None:
    """Remove the files of killed processes. Requires the lock of the entry."""
    for leftover in folder.parent.glob(f".making-{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write(folder: Path, prepared: Prepared) -> None:
    temporary = Path(mkdtemp(prefix=f".making-{folder.name}-", dir=folder.parent))
    try:
        for name, array in prepared.arrays.items():
            _save(temporary / f"{name}.npy", array)
        sizes = {name: (temporary / f"{name}.npy").stat().st_size for name in sorted(prepared.arrays)}
        digests = {name: digest(temporary / f"{name}.npy") for name in sizes}
        meta = json.loads(json.dumps(prepared.meta))  # as it will be read, with text keys
        document = {"arrays": sizes, "sha256": digests, "meta": meta, "meta_sha256": _sha256(meta)}
        write_synced(temporary / _META, json.dumps(document).encode())
        sync_directory(temporary)
        _move_damaged(folder, temporary)
        temporary.rename(folder)
        sync_directory(folder.parent)
    except OSError:
        if _read(folder) is None:  # otherwise another process wrote the same entry
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("xb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _move_damaged(folder: Path, temporary: Path) -> None:
    """Move a damaged entry away. Processes that have its arrays mapped can still use them."""
    if folder.exists() and _read(folder) is None:
        damaged = Path(mkdtemp(prefix=f"{temporary.name}-", dir=folder.parent))
        try:
            folder.rename(damaged / "damaged")
        finally:
            shutil.rmtree(damaged, ignore_errors=True)


def _read(folder: Path) -> Prepared | None:
    """Return the entry; None if it is missing or damaged."""
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
    """Return the SHA-256 of a file, or of the names and contents of all files in a folder.

    The result is stored in the cache folder and used again while sizes and times of the files stay the same.

    Args:
        path: File or folder.
    """
    is_folder = path.is_dir()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if is_folder else [path]
    note = _note_path(files, path)  # before reading: a file that changes meanwhile is not stored under its new state
    stored = ""
    with suppress(OSError):
        stored = note.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{64}", stored):
        return stored
    parts = [(file.relative_to(path).as_posix(), digest(file)) for file in files]
    result = hashlib.sha256(json.dumps(parts).encode()).hexdigest() if is_folder else parts[0][1]
    with suppress(OSError):  # without a note it is computed again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, result)
    return result


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, without using the cache."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note_path(files: Sequence[Path], path: Path) -> Path:
    """Return the file that stores the checksum of these files in their current state.

    The change time of the inode is part of the state, because a copy may keep the modification time.
    """
    state_hash = hashlib.sha256(str(path.resolve()).encode())
    for file in files:
        stat = file.stat()
        state = [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        state_hash.update(json.dumps(state).encode())
    return cache_folder() / "checksums" / state_hash.hexdigest()[:32]
