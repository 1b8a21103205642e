"""Which client sits on which node. A client is known by the id that it reports, never by its node's: that one changes
when a node without authentication restarts. Of two nodes that claim one id the first keeps it, for as long as it is
connected and answers; who must not be able to take an id over when its node is gone needs authenticated nodes."""

from __future__ import annotations

from collections.abc import Callable

from fedbalancer.flower import hello
from fedbalancer.flower.compat import RecordDict
from fedbalancer.flower.hello import Greeting
from fedbalancer.flower.layout import Faulty
from fedbalancer.flower.mailbox import Arrival, Letter, Mailbox
from fedbalancer.flower.orders import HELLO

PATIENCE = 3
"""Failed greetings after which no other is expected of a node."""

Say = Callable[..., None]
"""(event, **what there is to tell): the engine's log."""


class Nodes:
    """The nodes that are connected, and the clients that have introduced themselves on them."""

    def __init__(
        self, mailbox: Mailbox, question: RecordDict, clock: Callable[[], float], say: Say,
        most_samples: int = 10**6, hello_s: float = 180.0, again_s: float = 20.0,
    ) -> None:  # fmt: skip
        self._mailbox, self._question = mailbox, question
        self._clock, self._say, self._most = clock, say, most_samples
        self._hello_s, self._again_s = hello_s, again_s
        self._asked_s: dict[int, float] = {}
        self.connected: set[int] = set()
        self.node_of: dict[str, int] = {}
        self.greetings: dict[str, Greeting] = {}
        self._failed: dict[int, list[str]] = {}
        self.silent: set[int] = set()

    def refresh(self) -> None:
        """Look who is there, and ask who they are of all nodes that have not said."""
        now = self._clock()
        self.connected = self._mailbox.nodes()
        known = set(self.node_of.values())
        waiting = {sent.node for sent in self._mailbox.waiting(HELLO)}
        due = [
            node
            for node in sorted(self.connected - known - waiting)
            if now - self._asked_s.get(node, -self._again_s) >= self._again_s
        ]
        if due:
            self._asked_s |= dict.fromkeys(due, now)
            self._mailbox.send(HELLO, [Letter(node, "", self._question) for node in due], 0, self._hello_s)

    def take(self, arrival: Arrival) -> None:
        """A reply to the question who a node is."""
        node = arrival.sent.node
        try:
            if arrival.problem:
                raise Faulty(arrival.problem)
            if arrival.message.has_error():
                error = arrival.message.error
                raise Faulty(f"error {error.code}: {error.reason}")
            greeting = hello.read(arrival.message, arrival.seconds, self._most)
        except Faulty as problem:
            self._say("node not introduced", node=node, why=str(problem))
            self._failed.setdefault(node, []).append(str(problem))
            return
        self._failed.pop(node, None)
        before = self.node_of.get(greeting.client)
        if before is not None and before != node:
            if before in self.connected and before not in self.silent:
                self._say("id claimed twice", client=greeting.client, node=node, before=before)
                return
            self._mailbox.forget(before)
        self.node_of[greeting.client] = node
        self.greetings[greeting.client] = greeting
        self._say("client introduced", client=greeting.client, node=node, samples=greeting.size)

    def present(self) -> dict[str, int]:
        """The clients that can be reached now, and where."""
        return {client: node for client, node in sorted(self.node_of.items()) if node in self.connected}

    def hopeless(self) -> dict[int, str]:
        """The nodes that are there and have failed to say who they are as often as they were asked, three times and
        more: what they said last."""
        return {n: why[-1] for n, why in sorted(self._failed.items()) if n in self.connected and len(why) >= PATIENCE}
