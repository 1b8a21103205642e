"""Which client sits on which node. A client is known by the id that it reports, never by its node's: that one changes
when a node without authentication restarts. Of two nodes that claim one id the first keeps it, for as long as it is
connected and answers. Where nodes are authenticated (`Strategy(authenticated_nodes=True)`), it keeps it for the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedbalancer.flower.compat import RecordDict
from fedbalancer.flower.mailbox import Arrival, Letter, Mailbox
from fedbalancer.flower.messages import HELLO, Faulty
from fedbalancer.flower.reading import MOST_SAMPLES, Greeting, read_greeting

PATIENCE = 3
"""Failed greetings after which no other is expected of a node."""

Say = Callable[..., None]
"""(event, **what there is to tell): the engine's log."""


class Nodes:
    """The nodes that are connected, and the clients that have introduced themselves on them."""

    def __init__(
        self, mailbox: Mailbox, question: RecordDict, clock: Callable[[], float], say: Say,
        most_samples: int = MOST_SAMPLES, authenticated: bool = False, hello_s: float = 180.0,
        again_s: float = 20.0,
    ) -> None:  # fmt: skip
        self._mailbox, self._question = mailbox, question
        self._clock, self._say, self.most_samples, self._authenticated = clock, say, most_samples, authenticated
        self._hello_s, self._again_s = hello_s, again_s
        self._asked_s: dict[int, float] = {}
        self.connected: set[int] = set()
        self.node_of: dict[str, int] = {}
        self.greetings: dict[str, Greeting] = {}
        self.owner_of: dict[str, int] = {}
        self.returned: set[str] = set()
        self._failed: dict[int, list[str]] = {}
        self._again: set[int] = set()
        self.silent: set[int] = set()

    def refresh(self) -> None:
        """Look who is there, and ask who they are of all nodes that have not said."""
        now = self._clock()
        before, self.connected = self.connected, self._mailbox.nodes()
        self.returned |= {client for client, node in self.node_of.items() if node in self.connected - before}
        known = set(self.node_of.values()) - self._again
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
            greeting = read_greeting(arrival.message, arrival.seconds, self.most_samples)
            self._check_identity(greeting.client, node)
        except Faulty as problem:
            self._say("node not introduced", node=node, why=str(problem))
            self._failed.setdefault(node, []).append(str(problem))
            return
        self._failed.pop(node, None)
        self._again.discard(node)
        before = self.node_of.get(greeting.client)
        if before is not None and before != node:
            if before in self.connected and before not in self.silent:
                self._say("id claimed twice", client=greeting.client, node=node, before=before)
                return
            self._mailbox.forget(before)
            self.returned.add(greeting.client)
        self.node_of[greeting.client] = node
        self.owner_of.setdefault(greeting.client, node)
        self.greetings[greeting.client] = greeting
        self._say("client introduced", client=greeting.client, node=node, samples=greeting.size)

    def _check_identity(self, client: str, node: int) -> None:
        """A node has one client, and an authenticated node's client stays its own: its node id belongs to its key."""
        others = [name for name, at in self.node_of.items() if at == node and name != client]
        if others:
            raise Faulty(f"id {client!r} of a node that introduced itself as {others[0]!r} before")
        owner = self.owner_of.get(client, node)
        if self._authenticated and owner != node:
            raise Faulty(f"id {client!r}, which belongs to the key of node {owner} (authenticated_nodes)")

    def ask_again(self, node: int) -> None:
        """Ask a node who it is once more, as soon as it may be asked."""
        self._again.add(node)

    def resize(self, client: str, size: int | None) -> None:
        """Note the number of samples that a client reported."""
        greeting = self.greetings.get(client)
        if greeting is not None and size is not None and size != greeting.size:
            self.greetings[client] = replace(greeting, size=size)
            self._say("resized", client=client, before=greeting.size, samples=size)

    def present(self) -> dict[str, int]:
        """The clients that can be reached now, and where."""
        return {client: node for client, node in sorted(self.node_of.items()) if node in self.connected}

    def hopeless(self) -> dict[int, str]:
        """The nodes that are there and have failed to say who they are as often as they were asked, three times and
        more: what they said last."""
        return {n: why[-1] for n, why in sorted(self._failed.items()) if n in self.connected and len(why) >= PATIENCE}
