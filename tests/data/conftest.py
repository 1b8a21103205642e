"""Every test here has its own folders for data and for the cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The data folder, which is not there yet, and the cache folder."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    monkeypatch.setenv("FEDBALANCER_DATA", str(data))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(cache))
    return data, cache
