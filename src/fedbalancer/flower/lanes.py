"""Replies are pulled beside the clock, so that one that is slow to arrive holds up neither the round nor the others."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from fedbalancer.flower.compat import Grid, Message, pull

LANES = 4


class Lanes:
    """Pulls in a few threads. Flower shows a reply before all of it is there, and a pull then waits for the rest, for
    seconds if the client is slow and for longer if it died; so every message id has its lane, and a lane has one pull
    at a time. Without `background` it is all done here and now."""

    def __init__(self, grid: Grid, background: bool = True) -> None:
        self._grid = grid
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="fedbalancer-pull") if background else None
        self._pulls: dict[int, Future[list[Message]]] = {}
        self._lane_of: dict[str, int] = {}
        self._next = 0

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
        wait(self._pulls.values(), timeout=patience_s)
        done = [lane for lane, future in self._pulls.items() if future.done()]
        return [message for lane in done for message in self._pulls.pop(lane).result()]

    def _lane(self, identity: str) -> int:
        if identity not in self._lane_of:
            self._lane_of[identity] = self._next
            self._next = (self._next + 1) % LANES
        return self._lane_of[identity]

    def forget(self, identity: str) -> None:
        """The message is answered or given up."""
        self._lane_of.pop(identity, None)
