"""The events of a run: written to Flower's log, counted, and passed to a listener."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("flwr.fedbalancer")
WARNINGS = (
    "error", "invalid", "late reply", "missing", "no reply", "duplicate", "node not introduced", "evaluation failed",
    "not among the metrics", "id claimed twice", "sits out",
)  # fmt: skip
"""Events that are logged as warnings."""
LOGGED = 300
"""Longest logged text in characters. Some texts come from clients, which may send anything."""

LogEvent = Callable[..., None]
"""(event, **fields)"""


class EventLog:
    """Logs and counts events.

    Args:
        listener: Called with the name and the fields of every event.
    """

    def __init__(self, listener: LogEvent | None) -> None:
        self._listener = listener
        self.counts: Counter[str] = Counter()

    def log(self, event: str, **fields: Any) -> None:
        """Log and count an event, and pass it to the listener."""
        self.counts[event] += 1
        fields = {name: shorten(value) if isinstance(value, str) else value for name, value in fields.items()}
        level = logging.WARNING if event in WARNINGS else logging.INFO
        _log.log(level, "%s: %s", event, ", ".join(f"{name} {value}" for name, value in fields.items()))
        if self._listener is not None:
            self._listener(event, **fields)


def shorten(text: str) -> str:
    """Shorten a text to one printable line for the log."""
    short = " ".join(text[: 2 * LOGGED].split())[:LOGGED]
    printable = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
    return "".join(printable)[:LOGGED]
