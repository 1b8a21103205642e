"""The two folders: data as it was given, and what was made of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

DATA, CACHE = "FEDBALANCER_DATA", "FEDBALANCER_CACHE"
"""The environment variables that name the folders."""


def data_folder() -> Path:
    """Where data files are looked for: FEDBALANCER_DATA, else `data` in the cache folder."""
    return _named(DATA) or cache_folder() / "data"


def cache_folder() -> Path:
    """Where we may write: FEDBALANCER_CACHE, else the user's cache folder."""
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
