"""Messages and their replies. Every reply is attributed by the id of the message that it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbalancer.flower.compat import Grid, Message, RecordDict, node_ids, push
from fedbalancer.flower.downloads import ReplyLimit
from fedbalancer.flower.pulls import ReplyPuller

REMEMBERED = 10_000
"""Answered messages whose ids are kept, to tell a second answer from a stray one."""


@dataclass(frozen=True, eq=False)
class Letter:
    """Something to send; `budget_s` is how long the client was told that it may work on it."""

    node: int
    client: str
    content: RecordDict
    budget_s: float = 0.0


@dataclass(frozen=True)
class Sent:
    """A message on its way: to which node, for which client ("" before it is known) and round."""

    kind: str
    node: int
    client: str
    round: int
    pushed_s: float
    ttl_s: float
    budget_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Arrival:
    """A reply, what it answers, and how long the round trip took. If it was refused, `problem` says why, and `message`
    is an error."""

    sent: Sent
    message: Message
    seconds: float
    problem: str = ""


class Mailbox:
    """Sends and polls. A message that is not answered within its time to live is given up: Flower has no way to call
    it back, but lets it expire."""

    def __init__(self, grid: Grid, limit: ReplyLimit, clock: Callable[[], float], background: bool = True) -> None:
        self._grid, self._clock, self._puller = grid, clock, ReplyPuller(grid, limit, background)
        self._open: dict[str, Sent] = {}
        self._answered: dict[str, Sent] = {}
        self.counts: Counter[str] = Counter()
        self.expired: list[Sent] = []

    def send(self, kind: str, letters: Sequence[Letter], round: int, ttl_s: float) -> list[Sent]:
        """Send them; those that went out."""
        messages = [
            Message(letter.content, letter.node, kind, ttl=ttl_s, group_id=str(round) if round else None)
            for letter in letters
        ]
        now = self._clock()
        went = []
        for identity, letter in zip(self._puller.aside(push, self._grid, messages), letters, strict=True):
            if identity is not None:
                sent = Sent(kind, letter.node, letter.client, round, now, ttl_s, letter.budget_s)
                self._open[identity] = sent
                went.append(sent)
        return went

    def poll(self, patience_s: float) -> list[Arrival]:
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
            arrivals.append(Arrival(sent, reply.message, self._clock() - sent.pushed_s, reply.problem))
        self._give_up()
        return sorted(arrivals, key=lambda arrival: (arrival.sent.client, arrival.sent.node))

    def nodes(self) -> set[int]:
        """The nodes that can be written to."""
        return set(self._puller.aside(node_ids, self._grid))

    def busy(self) -> set[str]:
        """Clients that still have a message to answer."""
        return {sent.client for sent in self._open.values() if sent.client}

    def waiting(self, kind: str, round: int | None = None) -> list[Sent]:
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

    def _remember(self, identity: str, sent: Sent) -> None:
        self._answered[identity] = sent
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]
