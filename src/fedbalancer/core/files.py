"""Atomic files, the lock of a folder, and the folders for data and cached files."""

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
"""How the name of every temporary file of this module ends."""


def check_path_name(path: Path | str) -> None:
    """Raise `RunFolderError` for a name that is not UTF-8: polars cannot read or write tables there."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise RunFolderError(
            f"the name {str(path)!a} is not UTF-8; choose another name or, if it is right in your terminal, "
            "a UTF-8 locale, as in LC_ALL=C.UTF-8"
        ) from error


def write_bytes(path: Path, data: bytes | memoryview, mode: int = 0o666) -> None:
    """Replace the file at `path` by one that holds `data`, with the permissions `mode` that the umask leaves. The
    directory must exist."""
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
    """Replace the file at `path` by one that holds `text` in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace the file at `path` by `value` as indented JSON that any reader accepts, in the order of its keys."""
    write_text(path, json.dumps(readable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def readable(value: Any) -> Any:
    """`value` as strict JSON can hold it, for people and other programs to read.

    JSON has no infinity, so a float that is not finite becomes the string `"inf"`, `"-inf"` or `"nan"`, which
    `float()` and pydantic read back. Where the difference between such a float and a string matters, use
    `codec.to_jsonable`.

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
    """Write a new file and return when the disk has it. Not atomic by itself."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(folder: Path) -> None:
    """Return when the disk has the names in `folder`. Windows cannot open a directory, and needs no such step."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clean_temporaries(folder: Path) -> None:
    """Remove what a killed process left behind in `folder`; only for the one process that writes there."""
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
"""The environment variables that name the folders."""


def data_folder() -> Path:
    """Where data files are looked for: FEDBALANCER_DATA, else `data` in the cache folder."""
    return _named(DATA) or cache_folder() / "data"


def cache_folder() -> Path:
    """Where we may write: FEDBALANCER_CACHE, else the user's cache folder."""
    from platformdirs import user_cache_path

    return _named(CACHE) or user_cache_path("fedbalancer", appauthor=False)


@contextmanager
def looking_in(folder: Path) -> Iterator[None]:
    """A context in which `folder` is the data folder, for this process and those it starts."""
    before = os.environ.get(DATA)
    os.environ[DATA] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[DATA]
        else:
            os.environ[DATA] = before


def _named(variable: str) -> Path | None:
    """The folder that an environment variable names; set to nothing counts as not set."""
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
