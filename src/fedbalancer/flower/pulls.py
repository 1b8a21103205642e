"""Replies are pulled beside the clock, so that one that is slow to arrive holds up neither the round nor the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

from fedbalancer.flower.compat import Grid, pull
from fedbalancer.flower.downloads import Download, Reply, ReplyLimit
from fedbalancer.flower.wire import Listed, Wire, superlink_errors

LANES = 16
THREADS = {"list": LANES, "download": 8, "confirm": 2, "call": 4}
"""One pool for each kind of request, so that none waits for another kind: sends and the list of nodes are calls."""
AWAKE_S, HANGS_S = 0.5, 3.0
"""How often a waiting thread looks up, and after how long a lane counts as hanging: a busy SuperLink takes a second."""
P = ParamSpec("P")
T = TypeVar("T")


class ReplyPuller:
    """Lists replies and downloads them, each on its own.

    The SuperLink lists a reply before its sender has uploaded it. So every listed reply is a `Download` that proceeds
    as its sender does; no thread waits for it.

    The SuperLink takes longer to list a reply the more objects it has. So every message has a lane: one of its own, if
    there are at most `LANES` messages. No message may be in two requests at once: if the first one gets the reply,
    Flower answers the second one that there never was such a message. So the other messages of a lane that hangs wait
    for it, and later messages are given other lanes.

    If the grid has no wire, complete replies come from `pull_messages`. Without `background`, nothing runs in a thread.
    """

    def __init__(self, grid: Grid, limit: ReplyLimit, background: bool = True) -> None:
        self._grid, self._limit, self._wire = grid, limit, Wire.of(grid)
        self._pools = {
            name: ThreadPoolExecutor(threads, thread_name_prefix=f"fedbalancer-{name}") if background else None
            for name, threads in THREADS.items()
        }
        self._listing: dict[int, Future[list[Listed] | list[Reply]]] = {}
        self._since_s: dict[int, float] = {}
        self._lane_of: dict[str, int] = {}
        self._incoming: dict[str, Download] = {}
        self._steps: dict[str, Future[Reply | None]] = {}

    def pull(self, ids: Iterable[str], patience_s: float) -> list[Reply]:
        """The replies to these messages that are complete, after at most `patience_s`."""
        until = time.monotonic() + patience_s
        self._start_lists(ids)
        replies = self._collect()
        while (busy := self._busy()) and (left_s := until - time.monotonic()) > 0:
            wait(busy, timeout=left_s, return_when=FIRST_COMPLETED)
            replies += self._collect()
        return replies

    def _busy(self) -> list[Future[Any]]:
        return [*self._listing.values(), *self._steps.values()]

    def aside(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The result of any other call on the grid. This thread stays awake meanwhile: Flower repeats a call for as
        long as its SuperLink is away, and a thread that sleeps for good would never see the signal to end."""
        future = _submit(self._pools["call"], call, *given, **named)
        while not future.done():
            wait([future], timeout=AWAKE_S)
        with superlink_errors():
            return future.result()

    def forget(self, identity: str) -> None:
        """The message is answered or given up."""
        self._lane_of.pop(identity, None)
        self._incoming.pop(identity, None)

    def _start_lists(self, ids: Iterable[str]) -> None:
        wanted: dict[int, list[str]] = {}
        for identity in ids:
            if identity not in self._incoming:
                wanted.setdefault(self._lane(identity), []).append(identity)
        for lane, members in wanted.items():
            if lane not in self._listing:
                self._since_s[lane] = time.monotonic()
                self._listing[lane] = _submit(self._pools["list"], self._list, members)

    def _list(self, ids: Collection[str]) -> list[Listed] | list[Reply]:
        if self._wire is not None:
            return self._wire.list(ids)
        return [Reply(message.metadata.reply_to_message_id, message) for message in pull(self._grid, ids)]

    def _collect(self) -> list[Reply]:
        """The replies that are complete now. What was listed starts to be downloaded."""
        replies = []
        for lane in [lane for lane, future in self._listing.items() if future.done()]:
            with superlink_errors():
                listed = self._listing.pop(lane).result()
            for found in listed:
                if isinstance(found, Reply):
                    replies.append(found)
                elif self._wire is not None and found.answers in self._lane_of:
                    self._incoming[found.answers] = Download(self._wire, self._limit, found)
        for identity, download in self._incoming.items():
            if identity not in self._steps and download.due_s <= time.monotonic():
                self._steps[identity] = _submit(self._pools["download"], download.step)
        for identity in [identity for identity, future in self._steps.items() if future.done()]:
            reply = self._steps.pop(identity).result()
            if reply is not None and identity in self._incoming:
                replies.append(reply)
                _submit(self._pools["confirm"], self._incoming.pop(identity).confirm)
        return replies

    def _lane(self, identity: str) -> int:
        if identity not in self._lane_of:
            members = Counter(self._lane_of.values())
            self._lane_of[identity] = min(range(LANES), key=lambda lane: (self._hangs(lane), members[lane]))
        return self._lane_of[identity]

    def _hangs(self, lane: int) -> bool:
        return lane in self._listing and time.monotonic() - self._since_s[lane] > HANGS_S


def _submit(pool: ThreadPoolExecutor | None, call: Callable[..., T], *given: Any, **named: Any) -> Future[T]:
    """The call as a future: of a thread, or of this one where there is no pool."""
    if pool is not None:
        return pool.submit(call, *given, **named)
    done: Future[T] = Future()
    try:
        done.set_result(call(*given, **named))
    except Exception as error:
        done.set_exception(error)
    return done
