"""The clock of a bed: phone time, which all its processes share and which waits for those that are behind.

Phone time runs `speed` times as fast as this machine's. But a machine that has to train, carry and average for 21
phones may be slower than they are, and then the bed would measure the machine. So whoever has real work to do that
takes no phone time holds the clock, and whoever sleeps until some phone time promises to act then: the clock stands
still while it is held, and never passes a promise before it is kept. That is the conservative rule of parallel
simulation (K. M. Chandy and J. Misra, 1979), with a wall clock as its upper bound. A bed in real time holds nothing.
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbalancer.core.files import write_text

LOOK_S, SLEEP_S = 0.01, 0.1
"""Seconds of this machine: the shortest and the longest nap of somebody who waits for the clock."""


class BedClock:
    """Phone time, in a file that all processes of a bed share. `holders` has, by name, the phone time that somebody has
    promised to act at, or None of somebody who is at work."""

    def __init__(
        self, file: Path, speed: float, real_time: bool = False, wall: Callable[[], float] = time.time
    ) -> None:
        self._file, self._speed, self._real_time, self._wall = file, speed, real_time, wall

    def start(self) -> None:
        """Begin at 0, held by nobody."""
        write_text(self._file, json.dumps({"at_s": 0.0, "since": self._wall(), "stood_s": 0.0, "holders": {}}))

    def now_s(self) -> float:
        """Phone time."""
        with self._state(write=False) as state:
            return self._reading(state)

    def hold(self, *names: str) -> None:
        """Stand still: these are at work."""
        self._change(lambda holders: holders.update(dict.fromkeys(names)))

    def promise(self, name: str, due_s: float) -> None:
        """Go on, but not past `due_s`, when this one will act."""
        self._change(lambda holders: holders.update({name: due_s}))

    def keep(self, names: Collection[str]) -> None:
        """Forget all holders but these."""
        self._change(lambda holders: [holders.pop(name) for name in list(holders) if name not in names])

    def stood_s(self) -> float:
        """For how many seconds of this machine the clock has stood still."""
        with self._state(write=False) as state:
            return float(state["stood_s"])

    def wait(self, due_s: float, nap: Callable[[float], bool], most_s: float = math.inf) -> None:
        """Sleep until phone time is `due_s`, `nap` says that something has happened, or `most_s` of our own seconds."""
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
        """What the file says, while nobody else changes it. It is written in place: a lock is on the file itself, and
        nobody needs it after the bed."""
        with open(self._file, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            state = json.load(file)
            yield state
            if write:
                file.seek(0)
                file.truncate()
                json.dump(state, file)
