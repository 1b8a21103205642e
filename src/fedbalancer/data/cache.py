"""What preprocessing made, kept as memory-mapped arrays.

A cache entry is a folder named by the checksum of its sources and settings. It is written under another name, reaches
the disk, and is renamed when it is whole, so that a half-written one is never used. Of several processes that need
the same entry one makes it while the others wait. An entry of which a file is missing, cut off or no longer what was
written is made again; files are read through for that when their size or times have changed, not every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import sync_directory, write_synced
from fedbalancer.core.paths import CACHE, cache_folder
from fedbalancer.data.checksums import checksum, digest

_VERSION = 2
_META = "meta.json"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Named arrays and what is to be known about them (JSON values)."""

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]


def cached(task: str, key: Mapping[str, Any], make: Callable[[], Prepared]) -> Prepared:
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
