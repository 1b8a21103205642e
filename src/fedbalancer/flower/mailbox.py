"""Sending messages and receiving replies without ever blocking a round.

Every reply is attributed by the id of the message that it answers. Replies are pulled in the background, so that one
slow reply delays neither the round nor the other replies.
"""

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
"""Threads per kind of request. Separate pools keep one kind from waiting for another; sends are calls."""
AWAKE_S, HANGS_S = 0.5, 3.0
"""Seconds between two wake-ups of a waiting thread, and until a lane counts as hanging (a busy SuperLink takes one)."""
REMEMBERED = 10_000
"""Ids of answered messages that are kept, to recognise a second answer."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class OutgoingMessage:
    """A message to send.

    Args:
        node: The receiving node.
        client: Its client; "" if it is not known yet.
        content: The records.
        budget_s: Seconds that the client may work on it.
    """

    node: int
    client: str
    content: RecordDict
    budget_s: float = 0.0


@dataclass(frozen=True)
class SentMessage:
    """A message that was sent: its type, receiver, round, time and time to live."""

    kind: str
    node: int
    client: str
    round: int
    pushed_s: float
    ttl_s: float
    budget_s: float = 0.0


@dataclass(frozen=True, eq=False)
class ReceivedReply:
    """A reply with the message that it answers.

    Args:
        sent: The answered message.
        message: The reply; an error if it was refused.
        seconds: Duration of the round trip.
        problem: Why the reply was refused; "" if it was not.
    """

    sent: SentMessage
    message: Message
    seconds: float
    problem: str = ""


class Mailbox:
    """Sends messages and polls for their replies.

    A message that is not answered within its time to live is moved to `expired`. Flower cannot cancel a message.

    Args:
        grid: Flower's grid.
        limit: Largest reply that is downloaded.
        clock: Seconds of the wall clock.
        background: Whether requests run in threads.
    """

    def __init__(self, grid: Grid, limit: ReplyLimit, clock: Callable[[], float], background: bool = True) -> None:
        self._grid, self._clock, self._puller = grid, clock, ReplyPuller(grid, limit, background)
        self._open: dict[str, SentMessage] = {}
        self._answered: dict[str, SentMessage] = {}
        self.counts: Counter[str] = Counter()
        self.expired: list[SentMessage] = []

    def send(
        self, kind: str, outgoing: Sequence[OutgoingMessage], round_number: int, ttl_s: float
    ) -> list[SentMessage]:
        """Send messages.

        Returns:
            Those that the SuperLink accepted.
        """
        group = str(round_number) if round_number else None
        messages = [Message(one.content, one.node, kind, ttl=ttl_s, group_id=group) for one in outgoing]
        now = self._clock()
        accepted = []
        ids = self._puller.call_in_background(push, self._grid, messages)
        for identity, one in zip(ids, outgoing, strict=True):
            if identity is not None:
                sent = SentMessage(kind, one.node, one.client, round_number, now, ttl_s, one.budget_s)
                self._open[identity] = sent
                accepted.append(sent)
        return accepted

    def poll(self, patience_s: float) -> list[ReceivedReply]:
        """Return all new replies, sorted by client, after at most `patience_s` seconds.

        A second answer to a message, and an answer to an unknown message, are counted and dropped.
        """
        replies = []
        for reply in self._puller.pull(list(self._open), patience_s):
            answers = reply.answers
            sent = self._open.pop(answers, None)
            if sent is None:
                self.counts["duplicate" if answers in self._answered else "stray"] += 1
                continue
            self._remember(answers, sent)
            self._puller.forget(answers)
            replies.append(ReceivedReply(sent, reply.message, self._clock() - sent.pushed_s, reply.problem))
        self._expire()
        return sorted(replies, key=lambda received: (received.sent.client, received.sent.node))

    def nodes(self) -> set[int]:
        """Return the ids of the connected nodes."""
        return set(self._puller.call_in_background(node_ids, self._grid))

    def busy(self) -> set[str]:
        """Return the clients with an unanswered message."""
        return {sent.client for sent in self._open.values() if sent.client}

    def waiting(self, kind: str) -> list[SentMessage]:
        """Return the unanswered messages of a type."""
        return [sent for sent in self._open.values() if sent.kind == kind]

    def forget(self, node: int) -> None:
        """Stop waiting for the replies of a node."""
        for identity in [identity for identity, sent in self._open.items() if sent.node == node]:
            del self._open[identity]
            self._puller.forget(identity)

    def _expire(self) -> None:
        now = self._clock()
        for identity, sent in list(self._open.items()):
            if now > sent.pushed_s + sent.ttl_s:
                self.expired.append(self._open.pop(identity))
                self._puller.forget(identity)

    def _remember(self, identity: str, sent: SentMessage) -> None:
        self._answered[identity] = sent
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]


class ReplyPuller:
    """Lists and downloads replies independently of each other.

    The SuperLink lists a reply before its sender has uploaded it. Each listed reply is therefore a `Download` that
    advances as the upload does, and no thread waits for it.

    Listing a reply takes longer the more objects it has. Each message therefore has a lane, its own if there are at
    most `LANES` messages. A message must not be in two requests at once: if the first gets the reply, Flower answers
    the second that the message does not exist. The other messages of a lane that hangs wait for it, and later messages
    get other lanes.

    A grid without a known Runtime API delivers complete replies by `pull_messages`.

    Args:
        grid: Flower's grid.
        limit: Largest reply that is downloaded.
        background: Whether requests run in threads.
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
        """Return the complete replies to these messages, after at most `patience_s` seconds."""
        until = time.monotonic() + patience_s
        self._start_lists(ids)
        replies = self._collect()
        while (busy := self._busy()) and (left_s := until - time.monotonic()) > 0:
            wait(busy, timeout=left_s, return_when=FIRST_COMPLETED)
            replies += self._collect()
        return replies

    def _busy(self) -> list[Future[Any]]:
        return [*self._listing.values(), *self._steps.values()]

    def call_in_background(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return the result of another call on the grid.

        This thread wakes up regularly while it waits. Flower repeats a call as long as its SuperLink is away, and a
        thread that sleeps without end never receives the signal to stop.
        """
        future = _submit(self._pools["call"], call, *args, **options)
        while not future.done():
            wait([future], timeout=AWAKE_S)
        with superlink_errors():
            return future.result()

    def forget(self, identity: str) -> None:
        """Drop a message that is answered or has expired."""
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
        """Return the replies that are complete now, and start the downloads of newly listed ones."""
        replies = []
        for lane in [lane for lane, future in self._listing.items() if future.done()]:
            with superlink_errors():
                listed = self._listing.pop(lane).result()
            for reply_or_listed in listed:
                if isinstance(reply_or_listed, Reply):
                    replies.append(reply_or_listed)
                elif self._wire is not None and reply_or_listed.answers in self._lane_of:
                    self._incoming[reply_or_listed.answers] = Download(self._wire, self._limit, reply_or_listed)
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


def _submit(pool: ThreadPoolExecutor | None, call: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
    """Run a call in a pool, or at once in this thread if there is none."""
    if pool is not None:
        return pool.submit(call, *args, **options)
    future: Future[T] = Future()
    try:
        future.set_result(call(*args, **options))
    except Exception as error:
        future.set_exception(error)
    return future
