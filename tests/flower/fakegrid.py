"""A grid in memory on a clock of its own, with the methods of Flower's `Grid` that the engine uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Message, RecordDict

Node = Callable[[Message, float], list[tuple[float, Message]]]
"""What a node does with a message that was sent at a time: replies, and when each arrives."""


@dataclass
class Clock:
    """Seconds that pass only in `sleep`, which ends at the next thing that happens."""

    now: float = 0.0
    events: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        self.now = min([event for event in self.events if self.now < event <= until], default=until)


class Run:
    run_id = 7


class FakeGrid:
    """Nodes that answer at once or later. Replies are kept until they are pulled."""

    run = Run()

    def __init__(self, clock: Clock, nodes: dict[int, Node]) -> None:
        self.clock, self.nodes = clock, nodes
        self.replies: list[tuple[float, Message]] = []
        self.sent: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
            ids.append(message.metadata.message_id)
            for ready_s, reply in self.nodes[message.metadata.dst_node_id](message, self.clock.now):
                self.replies.append((ready_s, reply))
                self.clock.events.append(ready_s)
        return ids

    def pull_messages(self, wanted: Iterable[str]) -> Iterable[Message]:
        ids = set(wanted)
        ready = [r for at, r in self.replies if at <= self.clock.now and r.metadata.reply_to_message_id in ids]
        self.replies = [(at, r) for at, r in self.replies if not any(r is one for one in ready)]
        return ready


def make_context(node: int, **config: Any) -> Context:
    return Context(run_id=7, node_id=node, node_config=config, state=RecordDict(), run_config={})
