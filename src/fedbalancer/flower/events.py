"""What the server says while it runs: counted, in Flower's log, and told to whoever listens."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("flwr.fedbalancer")
OFFENCES = (
    "error", "invalid", "late reply", "missing", "no reply", "duplicate", "node not introduced", "evaluation failed",
    "not among the metrics", "id claimed twice", "sits out",
)  # fmt: skip
LOGGED = 300
"""Characters of a text in the log: some of it comes from clients, who may send a book."""


class EventLog:
    """The log of a run."""

    def __init__(self, listener: Callable[..., None] | None) -> None:
        self._tell = listener
        self.counts: Counter[str] = Counter()

    def log_event(self, event: str, **fields: Any) -> None:
        """Log an event, count it, and tell whoever listens."""
        self.counts[event] += 1
        fields = {name: line(value) if isinstance(value, str) else value for name, value in fields.items()}
        level = logging.WARNING if event in OFFENCES else logging.INFO
        _log.log(level, "%s: %s", event, ", ".join(f"{name} {value}" for name, value in fields.items()))
        if self._tell is not None:
            self._tell(event, **fields)


def line(text: str) -> str:
    """A text as one short line of the log, with all that cannot be printed escaped."""
    short = " ".join(text[: 2 * LOGGED].split())[:LOGGED]
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
    return "".join(shown)[:LOGGED]
