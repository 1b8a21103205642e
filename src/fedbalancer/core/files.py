"""Atomic files, the lock of a folder, and the folders for data and cached files.

A reader never sees half a file, and a crash never leaves one: the bytes go to a temporary file in the same folder, are
synced to disk and get the final name in one step. Then the folder is synced, so a power failure cannot undo the rename.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import RunFolderError

TEMPORARY_SUFFIX = ".fedbalancer-tmp"
"""Suffix of temporary files."""


def check_path_name(path: Path | str) -> None:
    """Check that a path is valid UTF-8, because polars cannot read or write other paths.

    Raises:
        RunFolderError: If it is not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise RunFolderError(
            f"the name {str(path)!a} is not UTF-8; choose another name or, if it is right in your terminal, "
            "a UTF-8 locale, as in LC_ALL=C.UTF-8"
        ) from error


def write_bytes(path: Path, data: bytes | memoryview, mode: int = 0o666) -> None:
    """Replace a file atomically.

    Args:
        path: The file. Its folder must exist.
        data: New content.
        mode: Permissions, before the umask.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        write_synced(temporary, data, mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically by text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically by indented strict JSON, in the order of its keys."""
    write_text(path, json.dumps(readable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def readable(value: Any) -> Any:
    """Convert a value to what strict JSON can represent.

    A float that is not finite becomes the string "inf", "-inf" or "nan", which `float()` and pydantic read back. Where
    this string must differ from a real string, use `codec.to_jsonable`.

    Args:
        value: Nested dictionaries, lists, arrays, paths and plain values.

    Example:
        >>> readable({"deadline_s": math.inf, "seeds": (0, 1), "ratio": np.float64(0.5)})
        {'deadline_s': 'inf', 'seeds': [0, 1], 'ratio': 0.5}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def write_synced(path: Path, data: bytes | memoryview, mode: int = 0o666) -> None:
    """Write a new file and sync it to disk. This alone is not atomic."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(folder: Path) -> None:
    """Sync the names in a folder to disk. Windows needs no such step."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clean_temporaries(folder: Path) -> None:
    """Remove temporary files that a killed process left. Only for the one process that writes to the folder."""
    for leftover in Path(folder).glob(f".*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


LOCK = ".lock"


class FolderLock:
    """Lock on a folder, held from construction until `release`.

    Args:
        folder: Folder to lock. It must exist.
        patience_s: Seconds to wait for another holder.

    Raises:
        RunFolderError: The folder cannot be written, or another process still holds the lock after `patience_s`.
    """

    def __init__(self, folder: Path, patience_s: float = 0.0) -> None:
        from filelock import FileLock, Timeout

        if not folder.is_dir():
            raise RunFolderError(f"{folder} cannot be written to: it is not a folder")
        self._lock = FileLock(folder / LOCK, timeout=patience_s, mode=0o666, thread_local=False, fallback_to_soft=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunFolderError(
                f"{folder} cannot be locked: another process is writing there; wait for it or stop it"
            ) from error
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be written to: {error}") from error

    def release(self) -> None:
        """Release the lock. Calling it again has no effect."""
        self._lock.release()


DATA, CACHE = "FEDBALANCER_DATA", "FEDBALANCER_CACHE"
"""Environment variables of the two folders."""


def data_folder() -> Path:
    """Return the folder for data files: FEDBALANCER_DATA, else `data` in the cache folder."""
    return _read_folder(DATA) or cache_folder() / "data"


def cache_folder() -> Path:
    """Return the folder for cached files: FEDBALANCER_CACHE, else the user's cache folder."""
    from platformdirs import user_cache_path

    return _read_folder(CACHE) or user_cache_path("fedbalancer", appauthor=False)


@contextmanager
def looking_in(folder: Path) -> Iterator[None]:
    """Use `folder` as the data folder within a `with` block, in this process and those it starts."""
    before = os.environ.get(DATA)
    os.environ[DATA] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[DATA]
        else:
            os.environ[DATA] = before


def _read_folder(variable: str) -> Path | None:
    """Return the folder in an environment variable, or None if it is not set or empty."""
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
