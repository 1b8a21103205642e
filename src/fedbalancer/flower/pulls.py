"""Replies are pulled beside the clock, so that one that is slow to arrive holds up neither the round nor the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

from fedbalancer.flower.compat import Grid, Message, pull

LANES, THREADS = 4, 32
AWAKE_S, HANGS_S = 0.5, 3.0
"""How often a waiting thread looks up, and after how long a pull counts as hanging: a busy SuperLink takes a second."""
P = ParamSpec("P")
T = TypeVar("T")


class ReplyPuller:
    """Pulls in a few threads. Flower shows a reply before all of it is there, and a pull then waits for the rest, for
    seconds if the client is slow and for longer if it died; so every message id has its lane, and a lane has one pull
    at a time. No message may be in two pulls at once: where the first takes the reply, Flower tells the second that
    there never was such a message. So those in a lane that hangs wait with it, but later ones keep out of it. Without
    `background` it is all done here and now."""

    def __init__(self, grid: Grid, background: bool = True) -> None:
        self._grid = grid
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fedbalancer-pull") if background else None
        self._pulls: dict[int, Future[list[Message]]] = {}
        self._since_s: dict[int, float] = {}
        self._lane_of: dict[str, int] = {}
        self._next, self._extra = 0, LANES

    def pull(self, ids: Iterable[str], patience_s: float) -> list[Message]:
        """What is there of the replies to these messages, after at most `patience_s`."""
        if self._pool is None:
            return pull(self._grid, ids)
        wanted: dict[int, list[str]] = {}
        for identity in ids:
            wanted.setdefault(self._lane(identity), []).append(identity)
        for lane, members in wanted.items():
            if lane not in self._pulls:
                self._pulls[lane] = self._pool.submit(pull, self._grid, members)
                self._since_s[lane] = time.monotonic()
        wait(self._pulls.values(), timeout=patience_s)
        done = [lane for lane, future in self._pulls.items() if future.done()]
        return [message for lane in done for message in self._pulls.pop(lane).result()]

    def aside(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The result of any other call on the grid. This thread stays awake meanwhile: Flower repeats a call for as
        long as its SuperLink is away, and a thread that sleeps for good would never see the signal to end."""
        if self._pool is None:
            return call(*given, **named)
        future = self._pool.submit(call, *given, **named)
        while not future.done():
            wait([future], timeout=AWAKE_S)
        return future.result()

    def _lane(self, identity: str) -> int:
        if identity not in self._lane_of:
            order = [(self._next + step) % LANES for step in range(LANES)]
            free = next((lane for lane in order if not self._hangs(lane)), None)
            if free is None:
                self._extra += 1
            self._lane_of[identity] = self._extra if free is None else free
            self._next = (self._next + 1) % LANES
        return self._lane_of[identity]

    def _hangs(self, lane: int) -> bool:
        return lane in self._pulls and time.monotonic() - self._since_s[lane] > HANGS_S

    def forget(self, identity: str) -> None:
        """The message is answered or given up."""
        self._lane_of.pop(identity, None)
