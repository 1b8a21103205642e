"""Helpers of executor tests: kill workers from outside, and wait for processes to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from builders import same
from simulation.executors.trainers import work, works

from fedbalancer.core.types import DivergedTraining, or_diverged
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.simulation.executors.shared_memory import SharedValue


def check_equal(executor: Any, trainer: Any, count: int) -> None:
    """Whatever is asked, the executor gives what the trainer gives."""
    assert executor.layout == trainer.layout
    weights = trainer.initial_weights(4)
    inline = InlineExecutor(trainer)
    assert same(executor.initial_weights(4), weights)
    expected = inline.train(weights, works(count))
    for _ in range(2):
        trained = executor.train(weights, works(count))
        assert same(trained, expected)
        assert all(each.update.flags.writeable for each in trained)
        assert same(list(executor.train_each(weights, works(count))), expected)
    mixed = [*works(2), work("diverging-1"), *works(3)[2:], work("diverging-2", batches=9)]
    outcomes = [or_diverged(trainer.train, weights, each) for each in mixed]
    assert outcomes[2] == DivergedTraining("diverging-1", "loss is not finite")
    assert same(list(executor.train(weights, mixed)), outcomes)
    assert same(list(executor.train_each(weights, mixed)), outcomes)
    clients = [each.client for each in works(count)]
    assert same(executor.losses(weights, clients), inline.losses(weights, clients))
    assert executor.evaluate(weights) == inline.evaluate(weights)
    assert same(weights, trainer.initial_weights(4))


class Killer:
    """Sends a signal to the process whose id appears in `folder`, of which it is expected to end sooner or later."""

    def __init__(self, folder: Path, number: int = signal.SIGKILL) -> None:
        self._path, self._number = folder / "pid", number
        self._thread = threading.Thread(target=self._wait_and_kill, daemon=True)
        self._thread.start()

    def victim(self) -> int:
        """Return the killed process, once it is dead."""
        self._thread.join()
        return int(self._path.read_text())

    def _wait_and_kill(self) -> None:
        wait_until(lambda: self._path.is_file() and self._path.read_text() != "")
        os.kill(int(self._path.read_text()), self._number)
        wait_until(lambda: not alive(int(self._path.read_text())))


def wait_until(happened, patience_s: float = 120.0) -> None:  # type: ignore[no-untyped-def]
    """Return when it has happened; fail if it never does."""
    until = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """All processes below this one, from Linux's /proc."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if fields[0] != "Z":
            parents[int(place.parent.name)] = int(fields[1])
    found: set[int] = set()
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found |= front
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_and_report(pipe: Any, shared: SharedValue) -> None:
    """Send what was shared, and whether this process maps shared memory."""
    value = shared.value
    pipe.send((value, "memfd:fedbalancer" in Path("/proc/self/maps").read_text()))


def check_all_end(script: str, named: str = "") -> None:
    """A driver that is killed leaves no process behind, of those whose command line begins with `named`."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as short:
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": short}
        driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        below = {pid for pid in descendants(driver.pid) if Path(f"/proc/{pid}/cmdline").read_text().startswith(named)}
        assert len(below) >= 2
        driver.kill()
        driver.wait()
        driver.stdout.close()
        wait_until(lambda: not any(alive(pid) for pid in below))
