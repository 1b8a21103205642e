"""Which client runs on which node.

A client is identified by the id that it reports, not by its node id, which changes when a node without authentication
restarts. If two nodes report the same id, the first keeps it while it is connected and answers. With
`Strategy(authenticated_nodes=True)` it keeps the id for the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedbalancer import __version__
from fedbalancer.flower.compat import ConfigRecord, RecordDict
from fedbalancer.flower.events import LogEvent
from fedbalancer.flower.mailbox import Mailbox, OutgoingMessage, ReceivedReply
from fedbalancer.flower.messages import HELLO, OLDEST
from fedbalancer.flower.model_arrays import InvalidMessage
from fedbalancer.flower.reading import MOST_SAMPLES, Greeting, read_greeting

REFRESH_S = 300.0
PATIENCE = 3
"""Failed greetings after which a node counts as failing."""


class Nodes:
    """The connected nodes and the clients that have introduced themselves.

    Args:
        mailbox: Sends the requests for greetings.
        request: Content of such a request.
        clock: Seconds of the wall clock.
        log_event: The engine's event log.
        most_samples: Largest number of samples that a client may report.
        authenticated: Whether a client id belongs to the first node that used it.
        hello_s: Time to live of a request, in seconds.
        again_s: Seconds between two requests to the same node.
        refresh_s: Age of changing tags after which an idle client is asked for them again, in seconds.
    """

    def __init__(
        self, mailbox: Mailbox, request: RecordDict, clock: Callable[[], float], log_event: LogEvent,
        most_samples: int = MOST_SAMPLES, authenticated: bool = False, hello_s: float = 180.0, again_s: float = 20.0,
        refresh_s: float = REFRESH_S,
    ) -> None:  # fmt: skip
        self._mailbox, self._request, self._clock, self._log_event = mailbox, request, clock, log_event
        self.most_samples, self._authenticated = most_samples, authenticated
        self._hello_s, self._again_s, self._refresh_s = hello_s, again_s, refresh_s
        self._tags_s: dict[str, float] = {}
        self.least_version = OLDEST
        self._asked_s: dict[int, float] = {}
        self.connected: set[int] = set()
        self.node_of: dict[str, int] = {}
        self.greetings: dict[str, Greeting] = {}
        self.owner_of: dict[str, int] = {}
        self.restarted: set[str] = set()
        self._failures: dict[int, list[str]] = {}
        self._again: set[int] = set()
        self.unresponsive: set[int] = set()

    def refresh(self) -> None:
        """Update the list of connected nodes, and ask unknown nodes for a greeting."""
        now = self._clock()
        before, self.connected = self.connected, self._mailbox.nodes()
        self.restarted |= {client for client, node in self.node_of.items() if node in self.connected - before}
        introduced = set(self.node_of.values()) - self._again
        waiting = {sent.node for sent in self._mailbox.waiting(HELLO)}
        due = [
            node
            for node in sorted(self.connected - introduced - waiting)
            if now - self._asked_s.get(node, -self._again_s) >= self._again_s
        ]
        if due:
            self._asked_s |= dict.fromkeys(due, now)
            self._mailbox.send(HELLO, [OutgoingMessage(node, "", self._request) for node in due], 0, self._hello_s)
        self._refresh_tags(now)

    def _refresh_tags(self, now: float) -> None:
        """Ask idle clients for tags that may have changed. They measure nothing for it."""
        busy = self._mailbox.busy() | {sent.client for sent in self._mailbox.waiting(HELLO)}
        old = {
            client: node
            for client, node in self.connected_clients().items()
            if self.greetings[client].changing and client not in busy and now - self._tags_s[client] >= self._refresh_s
        }
        if old:
            self._tags_s |= dict.fromkeys(old, now)
            request = RecordDict(
                {
                    name: ConfigRecord({**record, "refresh": True})
                    for name, record in self._request.config_records.items()
                }
            )
            self._mailbox.send(
                HELLO, [OutgoingMessage(node, client, request) for client, node in old.items()], 0, self._hello_s
            )

    def set_tags(self, client: str, tags: frozenset[str]) -> None:
        """Update the tags of a client."""
        self._tags_s[client] = self._clock()
        greeting = self.greetings.get(client)
        if greeting is not None and greeting.tags != tags:
            self.greetings[client] = replace(greeting, tags=tags)
            self._log_event("tags changed", client=client, tags=sorted(tags))

    def tags(self) -> dict[str, frozenset[str]]:
        """Return the tags of all clients that have any."""
        return {client: greeting.tags for client, greeting in self.greetings.items() if greeting.tags}

    def handle_greeting(self, received: ReceivedReply) -> None:
        """Register the client of a greeting, or log why it is refused."""
        node = received.sent.node
        try:
            if received.problem:
                raise InvalidMessage(received.problem)
            if received.message.has_error():
                error = received.message.error
                raise InvalidMessage(f"error {error.code}: {error.reason}")
            greeting = read_greeting(received.message, received.seconds, self.most_samples)
            if greeting.version < self.least_version:
                raise InvalidMessage(
                    f"client {greeting.client!r} has version {greeting.version} of the wire format, and secure "
                    f"aggregation needs version {self.least_version}; install fedbalancer=={__version__} there"
                )
            self._check_identity(greeting.client, node)
        except InvalidMessage as problem:
            self._log_event("node not introduced", node=node, why=str(problem))
            self._failures.setdefault(node, []).append(str(problem))
            return
        self._failures.pop(node, None)
        self._again.discard(node)
        before = self.node_of.get(greeting.client)
        if before is not None and before != node:
            if before in self.connected and before not in self.unresponsive:
                self._log_event("id claimed twice", client=greeting.client, node=node, before=before)
                return
            self._mailbox.forget(before)
            self.restarted.add(greeting.client)
        known = self.greetings.get(greeting.client)
        if known is not None and before == node and greeting.changing and not greeting.batch_s:  # only the tags
            self.set_tags(greeting.client, greeting.tags)
            return
        self._tags_s[greeting.client] = self._clock()
        self.node_of[greeting.client] = node
        self.owner_of.setdefault(greeting.client, node)
        self.greetings[greeting.client] = greeting
        tags = {"tags": sorted(greeting.tags)} if greeting.tags else {}
        self._log_event("client introduced", client=greeting.client, node=node, samples=greeting.size, **tags)

    def _check_identity(self, client: str, node: int) -> None:
        """Refuse a second client on a node, and a client id that belongs to another authenticated node."""
        others = [name for name, at in self.node_of.items() if at == node and name != client]
        if others:
            raise InvalidMessage(f"id {client!r} of a node that introduced itself as {others[0]!r} before")
        owner = self.owner_of.get(client, node)
        if self._authenticated and owner != node:
            raise InvalidMessage(f"id {client!r}, which belongs to the key of node {owner} (authenticated_nodes)")

    def request_greeting(self, node: int) -> None:
        """Ask a known node for another greeting, as soon as `again_s` allows."""
        self._again.add(node)

    def resize(self, client: str, size: int | None) -> None:
        """Update the number of samples of a client; None leaves it as it is."""
        greeting = self.greetings.get(client)
        if greeting is not None and size is not None and size != greeting.size:
            self.greetings[client] = replace(greeting, size=size)
            self._log_event("resized", client=client, before=greeting.size, samples=size)

    def connected_clients(self) -> dict[str, int]:
        """Return the connected clients, sorted by id, with their nodes."""
        return {client: node for client, node in sorted(self.node_of.items()) if node in self.connected}

    def failing_nodes(self) -> dict[int, str]:
        """Return the connected nodes whose greeting failed `PATIENCE` times or more, with the last reason."""
        failing = {n: why[-1] for n, why in sorted(self._failures.items()) if len(why) >= PATIENCE}
        return {node: why for node, why in failing.items() if node in self.connected}
