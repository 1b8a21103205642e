"""What preprocessing made, kept as memory-mapped arrays.

A cache entry is a folder named by the checksum of its sources and settings. It is written under another name and
renamed when it is whole, so that a half-written one is never used; two processes that make the same one do not meet.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.data.places import cache_folder

_VERSION = 1
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
    digest = hashlib.sha256(json.dumps([_VERSION, key], sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder() / "prepared" / f"{task}-{digest}"
    if not folder.is_dir():
        _write(folder, make())
    return _read(folder)


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files; remembered while size and time stay."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if len(files) == 1 and files[0] == path:
        return _file_checksum(path)
    parts = [(str(file.relative_to(path)), _file_checksum(file)) for file in files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    stat = path.stat()
    name = hashlib.sha256(f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:32]
    known = cache_folder() / "checksums" / name
    if known.is_file():
        return known.read_text(encoding="ascii")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    from fedbalancer.store.atomic import write_text

    known.parent.mkdir(parents=True, exist_ok=True)
    write_text(known, digest)
    return digest


def _write(folder: Path, prepared: Prepared) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        for name, array in prepared.arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        document = {"arrays": sorted(prepared.arrays), **{"meta": prepared.meta}}
        (temporary / _META).write_text(json.dumps(document), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster: its result is the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(folder: Path) -> Prepared:
    document = json.loads((folder / _META).read_text(encoding="utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in document["arrays"]}
    return Prepared(arrays, document["meta"])
