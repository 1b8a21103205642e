"""Where data lies and where we write: the environment decides, then the system's custom."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fedbalancer.core.files import cache_folder, data_folder, looking_in


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDBALANCER_DATA", "FEDBALANCER_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_names_both_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c"
    assert data_folder() == tmp_path / "c" / "data"
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path / "d"))
    assert data_folder() == tmp_path / "d"


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", "~/mine")
    assert data_folder() == Path.home() / "mine"


def test_an_empty_name_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", "")
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path))
    assert data_folder() == tmp_path / "data"
    monkeypatch.setenv("FEDBALANCER_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder().is_absolute()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a convention of Linux desktops")
def test_the_xdg_folder_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedbalancer"


@pytest.mark.parametrize("before", ["somewhere", None])
def test_looking_elsewhere_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None) -> None:
    if before is not None:
        monkeypatch.setenv("FEDBALANCER_DATA", before)

    def fail_inside() -> None:
        with looking_in(tmp_path):
            assert data_folder() == tmp_path
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert os.environ.get("FEDBALANCER_DATA") == before
