"""Hypothesis without clocks: a test may be slow on a busy machine and still be right. The longest files go first.
A test may have folders of its own for data and cache. Garbage is not collected while tests are collected."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

gc.disable()  # a fifth of the collection's time; from then on modules and tests are never garbage

LONGEST = (
    "flower/test_faults.py", "flower/test_real_processes.py", "paper/testbed/test_bed.py", "experiments/test_killed.py",
    "executors/test_ray.py", "cli/test_flower.py", "docs/test_snippets.py", "tests/test_package.py",
)  # fmt: skip
"""Files with processes to wait for, the longest first: at the end one worker would wait for them alone."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((number for number, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The data folder, which is not there yet, and the cache folder."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    monkeypatch.setenv("FEDBALANCER_DATA", str(data))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(cache))
    return data, cache
