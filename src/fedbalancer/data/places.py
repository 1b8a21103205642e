"""The two folders: data as it was given, and what was made of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """Where data files are looked for: FEDBALANCER_DATA, else `data` in the cache folder."""
    named = os.environ.get("FEDBALANCER_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def cache_folder() -> Path:
    """Where we may write: FEDBALANCER_CACHE, else the user's cache folder."""
    named = os.environ.get("FEDBALANCER_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedbalancer"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "fedbalancer"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedbalancer"
