"""The two folders: data as it was given, and what was made of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATA, CACHE = "FEDBALANCER_DATA", "FEDBALANCER_CACHE"
"""The environment variables that name the folders."""


def data_folder() -> Path:
    """Where data files are looked for: FEDBALANCER_DATA, else `data` in the cache folder."""
    return _named(DATA) or cache_folder() / "data"


def cache_folder() -> Path:
    """Where we may write: FEDBALANCER_CACHE, else the user's cache folder."""
    named = _named(CACHE)
    if named:
        return named
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedbalancer"
    if sys.platform == "win32":
        return (_named("LOCALAPPDATA") or Path.home()) / "fedbalancer"
    return (_named("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbalancer"


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
