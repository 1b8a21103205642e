"""The test bed's clock: phone time, shared by all processes, which waits for processes that are behind.

Phone time runs `speed` times as fast as this machine's clock. A machine that trains, transfers and aggregates for 21
phones may be slower than the phones; the test bed would then measure the machine. A process with real work that takes
no phone time therefore holds the clock. A process that sleeps until some phone time promises to act then. The clock
stops while it is held, and never passes a promise before it is kept. This is the conservative rule of parallel
simulation (K. M. Chandy and J. Misra, 1979), bounded by the wall clock. In real time nothing holds the clock.

Processes wake each other through named pipes. Flower's processes poll each other on a timer; 21 SuperNodes that poll
often enough for fast phones would use a whole core. Here they poll rarely and are woken when there is a message.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbalancer.core.files import write_text

LOOK_S, SLEEP_S = 0.01, 0.1
"""Shortest and longest sleep of a process that waits for the clock, in seconds of this machine."""


class BedClock:
    """Phone time in a file that all processes of a test bed share.

    `holders` maps a name to the phone time at which that process has promised to act, or to None while it works.

    Args:
        file: The shared file.
        speed: Phone seconds per second of this machine.
        real_time: Whether the clock never waits.
        wall: This machine's clock.
    """

    def __init__(
        self, file: Path, speed: float, real_time: bool = False, wall: Callable[[], float] = time.time
    ) -> None:
        self._file, self._speed, self._real_time, self._wall = file, speed, real_time, wall

    def start(self) -> None:
        """Start at 0 without holders."""
        write_text(self._file, json.dumps({"at_s": 0.0, "since": self._wall(), "stood_s": 0.0, "holders": {}}))

    def now_s(self) -> float:
        """Return the phone time."""
        with self._state(write=False) as state:
            return self._reading(state)

    def hold(self, *names: str) -> None:
        """Stop the clock while these names work."""
        self._change(lambda holders: holders.update(dict.fromkeys(names)))

    def promise(self, name: str, due_s: float) -> None:
        """Let the clock run until `due_s`, when `name` will act."""
        self._change(lambda holders: holders.update({name: due_s}))

    def keep(self, names: Collection[str]) -> None:
        """Remove all holders except these."""
        self._change(lambda holders: [holders.pop(name) for name in list(holders) if name not in names])

    def stood_s(self) -> float:
        """Return the seconds of this machine during which the clock was stopped."""
        with self._state(write=False) as state:
            return float(state["stood_s"])

    def wait(self, due_s: float, nap: Callable[[float], bool], most_s: float = math.inf) -> None:
        """Sleep until phone time `due_s`, until `nap` returns true, or for at most `most_s` seconds of this machine."""
        until = time.monotonic() + most_s
        while (left_s := due_s - self.now_s()) > 0 and time.monotonic() < until:
            if nap(min(max(left_s / self._speed, LOOK_S), SLEEP_S)):
                return

    def _reading(self, state: dict[str, Any]) -> float:
        at_s, holders = float(state["at_s"]), state["holders"].values()
        if None in holders:
            return at_s
        free_s = at_s + (self._wall() - float(state["since"])) * self._speed
        return min([free_s, *(max(float(due_s), at_s) for due_s in holders)])

    def _change(self, change: Callable[[dict[str, float | None]], Any]) -> None:
        if self._real_time:
            return
        with self._state(write=True) as state:
            now_s, wall = self._reading(state), self._wall()
            ran_s = (now_s - state["at_s"]) / self._speed
            state["stood_s"] += max(wall - state["since"] - ran_s, 0.0)
            state["at_s"], state["since"] = now_s, wall
            change(state["holders"])

    @contextmanager
    def _state(self, write: bool) -> Iterator[dict[str, Any]]:
        """Yield the file's content under a lock. It is written in place, because the lock is on the file itself."""
        with open(self._file, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            state = json.load(file)
            yield state
            if write:
                file.seek(0)
                file.truncate()
                json.dump(state, file)


SERVER = "server"


def make_pipes(folder: Path, names: tuple[str, ...]) -> None:
    """Create named pipes.

    Args:
        folder: Their folder.
        names: Their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        os.mkfifo(folder / name)


def wake(pipe: Path) -> None:
    """Wake the process that waits at a pipe, if any."""
    with suppress(OSError):
        opened = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(opened, b"!")
        finally:
            os.close(opened)


class WakeupPipe:
    """The end of a pipe at which a process waits.

    Args:
        pipe: The pipe.
    """

    def __init__(self, pipe: Path) -> None:
        # Also open for writing, so that the pipe does not end when a writer closes it.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds` or until woken, also by a signal sent before; return whether it was woken."""
        woken, _, _ = select.select([self._pipe], [], [], max(seconds, 0.0))
        if woken:
            os.read(self._pipe, 4096)
        return bool(woken)
