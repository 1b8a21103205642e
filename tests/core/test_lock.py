"""A folder has one writer, and is free again when that writer is gone in whatever way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import FolderLock

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
