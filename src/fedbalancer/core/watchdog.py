"""Processes that hang: stopped by somebody, or waiting for what never comes. Whoever waits for them replaces them.

What counts are looks, not seconds: a machine that sleeps, or a driver that is stopped together with its workers, sees
nothing and blames nobody. Only where the system shows its processes (/proc); elsewhere nothing ever hangs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LOOK_EVERY_S = 1.0
STOPPED_LOOKS = 10
"""Looks in a row at which a process is stopped, before it counts as hung."""
IDLE_LOOKS = 120
"""Looks in a row at which a process that has work does nothing at all. One that waits for a slow disk may be hit too:
its work is done again, with the same result."""


class Watchdog:
    """Kills processes that hang. Ask it as often as you like: it looks once in `LOOK_EVERY_S`."""

    def __init__(self) -> None:
        self._looked_at_s = time.monotonic()
        self._stopped: dict[int, int] = {}
        self._idle: dict[int, tuple[int, int]] = {}

    def look(self, processes: Iterable[int], working: Iterable[int] = ()) -> list[int]:
        """Kill those of the `processes` that were stopped all the time, and of those that are `working` also those
        that did nothing; returns which."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s < LOOK_EVERY_S:
            return []
        self._looked_at_s = now_s
        seen = {pid: state for pid in processes if (state := _state(pid)) is not None}
        self._stopped = {pid: self._stopped.get(pid, 0) + 1 for pid, (letter, _) in seen.items() if letter == "T"}
        self._idle = {pid: self._looks_without(pid, seen[pid][1]) for pid in working if pid in seen}
        hung = [pid for pid, looks in self._stopped.items() if looks >= STOPPED_LOOKS]
        hung += [pid for pid, (looks, _) in self._idle.items() if looks >= IDLE_LOOKS and pid not in hung]
        for pid in hung:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # which a stopped process heeds, too
        return hung

    def _looks_without(self, pid: int, ticks: int) -> tuple[int, int]:
        """How many looks in a row found the process at the same time of computing, and that time."""
        looks, before = self._idle.get(pid, (0, ticks))
        return (looks + 1, ticks) if before == ticks else (0, ticks)


def _state(pid: int) -> tuple[str, int] | None:
    """The letter of a process's state, and the ticks that it has computed; None where that cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
