"""How the server waits for its clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """How the engine waits. `grace_s` is what a message lives beyond its deadline, `poll_s` how often replies are asked
    for, `settle_s` how long a new round waits for clients that have yet to answer the last one (for enough of them, or
    for `everybody`), `timeout_s` how long a round without a deadline may take, and how long the server waits for
    anybody to be there. `clock` and `sleep` are the wall's and replies are pulled in the
    `background`, unless a test brings its own time."""

    poll_s: float = 0.25
    grace_s: float = 5.0
    settle_s: float = 4.0
    timeout_s: float = 3600.0
    everybody: bool = False
    background: bool = True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WAITING = Waiting()
