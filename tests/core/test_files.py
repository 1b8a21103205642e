"""Atomic files, locks of folders, and the folders for data and cached files."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core import files
from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import FolderLock, cache_folder, data_folder, looking_in


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    files.write_bytes(file, b"old and long")
    files.write_bytes(file, b"new")
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_text_is_utf8(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.md", "ε × 2")
    assert (tmp_path / "a.md").read_bytes() == "ε × 2".encode()


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    files.write_bytes(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        files.write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_others_may_read_as_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    files.write_bytes(tmp_path / "atomic", b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")}
    assert len(modes) == 1


def test_json_is_strict_indented_and_in_order(tmp_path: Path) -> None:
    value = {
        "z": math.inf,
        "a": (-math.inf, math.nan, 1.5),
        "n": np.int64(3),
        "v": np.array([1.0, math.nan]),
        "p": tmp_path,
    }
    files.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    loaded = json.loads(text, parse_constant=refuse)
    assert list(loaded) == ["z", "a", "n", "v", "p"]
    assert loaded == {"z": "inf", "a": ["-inf", "nan", 1.5], "n": 3, "v": [1.0, "nan"], "p": str(tmp_path)}
    assert text.startswith('{\n  "z": "inf"')


def test_clean_removes_only_our_temporaries(tmp_path: Path) -> None:
    (tmp_path / f".a.json.123{files.TEMPORARY_SUFFIX}").write_bytes(b"half")
    (tmp_path / ".hidden.tmp").write_bytes(b"someone's")
    files.clean_temporaries(tmp_path)
    assert names(tmp_path) == [".hidden.tmp"]


pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no advisory lock on Windows")

HOLDER = """
import os, sys, time
from pathlib import Path
from fedbalancer.core.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
worker = os.fork()
if worker == 0:
    os.close(1)
    time.sleep(60)
print(worker, flush=True)
time.sleep(60)
"""


def test_the_second_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(RunFolderError, match=f"{tmp_path} cannot be locked: another process is writing there"):
        FolderLock(tmp_path)
    first.release()
    first.release()
    FolderLock(tmp_path).release()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be written to"):
        FolderLock(tmp_path / "absent")


def freed(folder: Path) -> None:
    """Wait until the lock can be had: the worker lets go as the first thing it does, once it gets to run."""
    for _ in range(200):
        try:
            return FolderLock(folder).release()
        except RunFolderError:
            time.sleep(0.05)
    raise AssertionError("the worker keeps the lock")


def test_a_killed_holder_frees_it_though_its_forked_worker_lives(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        try:
            with pytest.raises(RunFolderError, match="cannot be locked"):
                FolderLock(tmp_path)
            holder.kill()
            holder.wait()
            os.kill(worker, 0)  # it is still there
            freed(tmp_path)
        finally:
            os.kill(worker, signal.SIGKILL)


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
