"""Hanging processes are killed; processes that work, sleep for a while or are not ours continue."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbalancer.core import processes as module
from fedbalancer.core.processes import Watchdog

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
SLEEPING, WORKING = "import time; print(1, flush=True); time.sleep(600)", "print(1, flush=True)\nwhile True: pass"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(module, "STOPPED_LOOKS", 3)
    monkeypatch.setattr(module, "IDLE_LOOKS", 5)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """One that sleeps and one that works."""
    codes = (SLEEPING, WORKING)
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for code in codes]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    yield started
    for process in started:
        process.kill()
        process.communicate()


def signalled(process: subprocess.Popen[str], number: int, event: int) -> None:
    """Send a signal, and return when it has arrived."""
    process.send_signal(number)
    os.waitpid(process.pid, event)


def looks(dog: Watchdog, count: int, *asked: list[int]) -> list[int]:
    killed: list[int] = []
    for _ in range(count):
        killed += dog.look(*asked)
        time.sleep(0.2)  # so that who works is seen to
    return killed


def test_one_that_is_stopped_is_killed_after_so_many_looks(processes: list[subprocess.Popen[str]]) -> None:
    sleeping, working = (process.pid for process in processes)
    dog = Watchdog()
    assert looks(dog, 5, [sleeping, working]) == []
    signalled(processes[0], signal.SIGSTOP, os.WUNTRACED)
    assert looks(dog, 2, [sleeping, working]) == []
    signalled(processes[0], signal.SIGCONT, os.WCONTINUED)
    assert looks(dog, 3, [sleeping, working]) == [], "it was stopped for a while only"
    signalled(processes[0], signal.SIGSTOP, os.WUNTRACED)
    assert looks(dog, 3, [sleeping, working]) == [sleeping]
    assert processes[0].wait(60) == -signal.SIGKILL
    assert looks(dog, 2, [sleeping, 2**22 + 5]) == [], "who is gone is not missed"


def test_one_that_has_work_and_does_nothing_is_killed(processes: list[subprocess.Popen[str]]) -> None:
    sleeping, working = (process.pid for process in processes)
    assert set(looks(Watchdog(), 7, [sleeping, working], [sleeping, working])) == {sleeping}
    assert processes[1].poll() is None


def test_it_does_not_look_more_often_than_it_shall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(module, "_state", lambda pid: pytest.fail("looked"))
    assert Watchdog().look([1]) == []


FAULTS = """
import resource, sys
from fedbalancer.core.processes import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def batch():
    [bytearray(30_000_000) for _ in range(4)]
batch(), batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_a_worker_frees_serves_its_next_batch() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc has this setting")
    asked = ([sys.executable, "-c", FAULTS, choice] for choice in ("leave", "keep"))
    cleared, kept = (int(subprocess.run(each, capture_output=True, text=True, check=True).stdout) for each in asked)
    assert kept * 10 < cleared  # pages that the system had to clear again
