"""Which client sits on which node. A client is known by the id that it reports, never by its node's: that one changes
when a node without authentication restarts. Of two nodes that claim one id the first keeps it, for as long as it is
connected and answers. Where nodes are authenticated (`Strategy(authenticated_nodes=True)`), it keeps it for the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedbalancer.flower.compat import RecordDict
from fedbalancer.flower.mailbox import Mailbox, OutgoingMessage, ReceivedReply
from fedbalancer.flower.messages import HELLO, InvalidMessage
from fedbalancer.flower.reading import MOST_SAMPLES, Greeting, read_greeting

PATIENCE = 3
"""Failed greetings after which no other is expected of a node."""

LogEvent = Callable[..., None]
"""(event, **what there is to tell): the engine's log."""


class Nodes:
    """The nodes that are connected, and the clients that have introduced themselves on them."""

    def __init__(
        self, mailbox: Mailbox, question: RecordDict, clock: Callable[[], float], log_event: LogEvent,
        most_samples: int = MOST_SAMPLES, authenticated: bool = False, hello_s: float = 180.0,
        again_s: float = 20.0,
    ) -> None:  # fmt: skip
        self._mailbox, self._question = mailbox, question
        self._clock, self._log_event, self.most_samples, self._authenticated = (
            clock,
            log_event,
            most_samples,
            authenticated,
        )
        self._hello_s, self._again_s = hello_s, again_s
        self._asked_s: dict[int, float] = {}
        self.connected: set[int] = set()
        self.node_of: dict[str, int] = {}
        self.greetings: dict[str, Greeting] = {}
        self.owner_of: dict[str, int] = {}
        self.restarted: set[str] = set()
        self._failed: dict[int, list[str]] = {}
        self._again: set[int] = set()
        self.unresponsive: set[int] = set()

    def refresh(self) -> None:
        """Look who is there, and ask who they are of all nodes that have not said."""
        now = self._clock()
        before, self.connected = self.connected, self._mailbox.nodes()
        self.restarted |= {client for client, node in self.node_of.items() if node in self.connected - before}
        known = set(self.node_of.values()) - self._again
        waiting = {sent.node for sent in self._mailbox.waiting(HELLO)}
        due = [
            node
            for node in sorted(self.connected - known - waiting)
            if now - self._asked_s.get(node, -self._again_s) >= self._again_s
        ]
        if due:
            self._asked_s |= dict.fromkeys(due, now)
            self._mailbox.send(HELLO, [OutgoingMessage(node, "", self._question) for node in due], 0, self._hello_s)

    def handle_greeting(self, received: ReceivedReply) -> None:
        """A reply to the question who a node is."""
        node = received.sent.node
        try:
            if received.problem:
                raise InvalidMessage(received.problem)
            if received.message.has_error():
                error = received.message.error
                raise InvalidMessage(f"error {error.code}: {error.reason}")
            greeting = read_greeting(received.message, received.seconds, self.most_samples)
            self._check_identity(greeting.client, node)
        except InvalidMessage as problem:
            self._log_event("node not introduced", node=node, why=str(problem))
            self._failed.setdefault(node, []).append(str(problem))
            return
        self._failed.pop(node, None)
        self._again.discard(node)
        before = self.node_of.get(greeting.client)
        if before is not None and before != node:
            if before in self.connected and before not in self.unresponsive:
                self._log_event("id claimed twice", client=greeting.client, node=node, before=before)
                return
            self._mailbox.forget(before)
            self.restarted.add(greeting.client)
        self.node_of[greeting.client] = node
        self.owner_of.setdefault(greeting.client, node)
        self.greetings[greeting.client] = greeting
        self._log_event("client introduced", client=greeting.client, node=node, samples=greeting.size)

    def _check_identity(self, client: str, node: int) -> None:
        """A node has one client, and an authenticated node's client stays its own: its node id belongs to its key."""
        others = [name for name, at in self.node_of.items() if at == node and name != client]
        if others:
            raise InvalidMessage(f"id {client!r} of a node that introduced itself as {others[0]!r} before")
        owner = self.owner_of.get(client, node)
        if self._authenticated and owner != node:
            raise InvalidMessage(f"id {client!r}, which belongs to the key of node {owner} (authenticated_nodes)")

    def request_greeting(self, node: int) -> None:
        """Ask a node who it is once more, as soon as it may be asked."""
        self._again.add(node)

    def resize(self, client: str, size: int | None) -> None:
        """Note the number of samples that a client reported."""
        greeting = self.greetings.get(client)
        if greeting is not None and size is not None and size != greeting.size:
            self.greetings[client] = replace(greeting, size=size)
            self._log_event("resized", client=client, before=greeting.size, samples=size)

    def connected_clients(self) -> dict[str, int]:
        """The clients that can be reached now, and where."""
        return {client: node for client, node in sorted(self.node_of.items()) if node in self.connected}

    def failing_nodes(self) -> dict[int, str]:
        """The nodes that are there and have failed to say who they are as often as they were asked, three times and
        more: what they said last."""
        return {n: why[-1] for n, why in sorted(self._failed.items()) if n in self.connected and len(why) >= PATIENCE}
