"""Bells between the processes of a bed: named pipes that wake whoever would otherwise ask again and again.

Flower's parts ask each other for news on a timer. Often enough for a phone at many times its speed, 21 SuperNodes would
take a core for asking alone; so they ask seldom and are rung when there is something.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

SERVER = "server"


def hang_up(folder: Path, names: tuple[str, ...]) -> None:
    """Make a bell for every name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        os.mkfifo(folder / name)


def ring(bell: Path) -> None:
    """Wake whoever waits at a bell; if nobody does, nothing happens."""
    with suppress(OSError):
        pipe = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"!")
        finally:
            os.close(pipe)


class Bell:
    """One end to wait at."""

    def __init__(self, bell: Path) -> None:
        # For writing too, so that the pipe never ends when a ringer closes it.
        self._pipe = os.open(bell, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the bell rings; rings that nobody has heard yet count."""
        rung, _, _ = select.select([self._pipe], [], [], max(seconds, 0.0))
        if rung:
            os.read(self._pipe, 4096)
        return bool(rung)
