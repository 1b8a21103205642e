"""How the processes of a bed wake each other: named pipes for whoever would otherwise ask again and again.

Flower's parts ask each other for news on a timer. Often enough for a phone at many times its speed, 21 SuperNodes would
take a core for asking alone; so they ask seldom and are woken when there is something.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

SERVER = "server"


def make_pipes(folder: Path, names: tuple[str, ...]) -> None:
    """Make a pipe for every name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        os.mkfifo(folder / name)


def wake(pipe: Path) -> None:
    """Wake whoever waits at a pipe; if nobody does, nothing happens."""
    with suppress(OSError):
        opened = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(opened, b"!")
        finally:
            os.close(opened)


class WakeupPipe:
    """One end to wait at."""

    def __init__(self, pipe: Path) -> None:
        # For writing too, so that the pipe never ends when a writer closes it.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until somebody wakes us; wake-ups that nobody has noticed yet count."""
        woken, _, _ = select.select([self._pipe], [], [], max(seconds, 0.0))
        if woken:
            os.read(self._pipe, 4096)
        return bool(woken)
