"""Messages and their replies. Every reply is attributed by the id of the message that it answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fedbalancer.flower.compat import Grid, Message, RecordDict, node_ids, pull, push
from fedbalancer.flower.wire import Download, ListedReply, Reply, ReplyLimit, Wire, superlink_errors

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
        self._listing: dict[int, Future[list[ListedReply] | list[Reply]]] = {}
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

    def call_in_background(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
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

    def _list(self, ids: Collection[str]) -> list[ListedReply] | list[Reply]:
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


REMEMBERED = 10_000
"""Answered messages whose ids are kept, to tell a second answer from a stray one."""


@dataclass(frozen=True, eq=False)
class OutgoingMessage:
    """Something to send; `budget_s` is how long the client was told that it may work on it."""

    node: int
    client: str
    content: RecordDict
    budget_s: float = 0.0


@dataclass(frozen=True)
class SentMessage:
    """A message on its way: to which node, for which client ("" before it is known) and round."""

    kind: str
    node: int
    client: str
    round: int
    pushed_s: float
    ttl_s: float
    budget_s: float = 0.0


@dataclass(frozen=True, eq=False)
class ReceivedReply:
    """A reply, what it answers, and how long the round trip took. If it was refused, `problem` says why, and `message`
    is an error."""

    sent: SentMessage
    message: Message
    seconds: float
    problem: str = ""


class Mailbox:
    """Sends and polls. A message that is not answered within its time to live is given up: Flower has no way to call
    it back, but lets it expire."""

    def __init__(self, grid: Grid, limit: ReplyLimit, clock: Callable[[], float], background: bool = True) -> None:
        self._grid, self._clock, self._puller = grid, clock, ReplyPuller(grid, limit, background)
        self._open: dict[str, SentMessage] = {}
        self._answered: dict[str, SentMessage] = {}
        self.counts: Counter[str] = Counter()
        self.expired: list[SentMessage] = []

    def send(self, kind: str, letters: Sequence[OutgoingMessage], round: int, ttl_s: float) -> list[SentMessage]:
        """Send them; those that went out."""
        messages = [
            Message(letter.content, letter.node, kind, ttl=ttl_s, group_id=str(round) if round else None)
            for letter in letters
        ]
        now = self._clock()
        went = []
        for identity, letter in zip(self._puller.call_in_background(push, self._grid, messages), letters, strict=True):
            if identity is not None:
                sent = SentMessage(kind, letter.node, letter.client, round, now, ttl_s, letter.budget_s)
                self._open[identity] = sent
                went.append(sent)
        return went

    def poll(self, patience_s: float) -> list[ReceivedReply]:
        """All new replies, in order of client id, after at most `patience_s`. A second answer to the same message, or
        one to a message that we never sent, is counted and dropped."""
        arrivals = []
        for reply in self._puller.pull(list(self._open), patience_s):
            answers = reply.answers
            sent = self._open.pop(answers, None)
            if sent is None:
                self.counts["duplicate" if answers in self._answered else "stray"] += 1
                continue
            self._remember(answers, sent)
            self._puller.forget(answers)
            arrivals.append(ReceivedReply(sent, reply.message, self._clock() - sent.pushed_s, reply.problem))
        self._give_up()
        return sorted(arrivals, key=lambda received: (received.sent.client, received.sent.node))

    def nodes(self) -> set[int]:
        """The nodes that can be written to."""
        return set(self._puller.call_in_background(node_ids, self._grid))

    def busy(self) -> set[str]:
        """Clients that still have a message to answer."""
        return {sent.client for sent in self._open.values() if sent.client}

    def waiting(self, kind: str, round: int | None = None) -> list[SentMessage]:
        """What was not answered yet."""
        return [sent for sent in self._open.values() if sent.kind == kind and round in (None, sent.round)]

    def forget(self, node: int) -> None:
        """Wait no longer for a node that is gone."""
        for identity in [identity for identity, sent in self._open.items() if sent.node == node]:
            del self._open[identity]
            self._puller.forget(identity)

    def _give_up(self) -> None:
        now = self._clock()
        for identity, sent in list(self._open.items()):
            if now > sent.pushed_s + sent.ttl_s:
                self.expired.append(self._open.pop(identity))
                self._puller.forget(identity)

    def _remember(self, identity: str, sent: SentMessage) -> None:
        self._answered[identity] = sent
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]
