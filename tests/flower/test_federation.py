"""A federation leaves no process behind, in whatever group it runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.federation import Federation

PARENT = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found by /proc")
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_process_that_left_the_group_is_stopped_too(tmp_path: Path, one_by_one: bool) -> None:
    with Federation(tmp_path) as federation:
        federation.start("parent", [sys.executable, "-c", PARENT])
        while not (child := federation.log("parent").strip()):
            time.sleep(0.05)
        assert alive(child)
        if one_by_one:
            federation.stop("parent")
    while alive(child):  # the test's own time limit is the limit
        time.sleep(0.05)
    assert not federation.processes
