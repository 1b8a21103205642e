"""Mistakes with Ray are clear errors at once; these tests need no Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.simulation.executors import RayExecutor
from fedbalancer.simulation.executors import ray as ray_module


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingData, match=r"pip install 'fedbalancer\[ray\]'"):
        RayExecutor(int)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("cluster", "must be auto, HOST:PORT"),
        (":6379", "must be auto, HOST:PORT"),
        ("host:port", "must be auto, HOST:PORT"),
        ("127.0.0.1:1", "no Ray answers there"),
        ("ray://127.0.0.1:1", "no Ray answers there"),
        ("127.0.0.1:99999999", "no Ray answers there"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(address: str, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        ray_module.check_answers(address)


def test_an_address_that_answers_is_left_to_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray_module.check_answers(f"127.0.0.1:{server.getsockname()[1]}")
    ray_module.check_answers("auto")


def test_the_folders_of_killed_drivers_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ray_module, "MAX_FOLDER_LENGTH", 1000)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"fb-ray-{ended.pid}-abc", f"fb-ray-{os.getpid()}-abc", "fb-ray-notes-abc", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    fresh = ray_module.make_temp_folder()
    assert fresh.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], fresh.name}
