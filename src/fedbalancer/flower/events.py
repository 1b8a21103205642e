"""The events of a run: written to Flower's log, counted, and passed to a listener.

With `FEDBALANCER_LOG=json` the log has one JSON object per line, for servers and clients.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import readable

_log = logging.getLogger("flwr.fedbalancer")
WARNINGS = (
    "error", "invalid", "late reply", "missing", "no reply", "duplicate", "node not introduced", "evaluation failed",
    "not among the metrics", "id claimed twice", "sits out",
)  # fmt: skip
"""Events that are logged as warnings."""
LOGGED = 300
"""Longest logged text in characters. Some texts come from clients, which may send anything."""

FORMAT, LEVEL = "FEDBALANCER_LOG", "FEDBALANCER_LOG_LEVEL"
"""Environment variables: the format of the log (`text` or `json`), and its level."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
NAMES = {"why": "reason"}
"""Names of fields that differ in JSON lines."""

LogEvent = Callable[..., None]
"""(event, **fields)"""


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time, level, event, run, round, client, reason, and other fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: Mapping[str, Any] = getattr(record, "fields_of_event", {"message": shorten(record.getMessage())})
        time = datetime.fromtimestamp(record.created, UTC).isoformat()
        named = {NAMES.get(name, name): value for name, value in fields.items()}
        return json.dumps(readable({"time": time, "level": record.levelname.lower(), **named}), default=str)


def configure_log() -> None:
    """Apply the environment variables `FEDBALANCER_LOG` and `FEDBALANCER_LOG_LEVEL` to the log of this process.

    Raises:
        BadSetting: A variable has an unknown value.
    """
    form, level = os.environ.get(FORMAT, "text").lower(), os.environ.get(LEVEL, "").upper()
    if form not in ("text", "json"):
        raise BadSetting(f"{FORMAT}={form} must be text or json")
    if level and level not in LEVELS:
        raise BadSetting(f"{LEVEL}={level} must be one of {', '.join(LEVELS)}")
    if level:
        _log.setLevel(level)
    if form == "json" and not any(isinstance(handler.formatter, JsonLines) for handler in _log.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        _log.addHandler(handler)
        _log.propagate = False


def json_fields(event: str, **fields: Any) -> dict[str, Any]:
    """Return the `extra` of a log record with which `JsonLines` writes the fields of an event."""
    return {"fields_of_event": {"event": event, **fields}}


class EventLog:
    """Logs and counts events.

    Args:
        listener: Called with the name and the fields of every event.
        run_key: Name of the run, which JSON lines contain.
    """

    def __init__(self, listener: LogEvent | None, run_key: str = "") -> None:
        configure_log()
        self._listener, self._run_key = listener, run_key
        self.counts: Counter[str] = Counter()

    def log(self, event: str, **fields: Any) -> None:
        """Log and count an event, and pass it to the listener."""
        self.counts[event] += 1
        fields = {name: shorten(value) if isinstance(value, str) else value for name, value in fields.items()}
        level = logging.WARNING if event in WARNINGS else logging.INFO
        text = ", ".join(f"{name} {value}" for name, value in fields.items())
        _log.log(level, "%s: %s", event, text, extra=json_fields(event, run=self._run_key, **fields))
        if self._listener is not None:
            self._listener(event, **fields)


def shorten(text: str) -> str:
    """Shorten a text to one printable line for the log."""
    short = " ".join(text[: 2 * LOGGED].split())[:LOGGED]
    printable = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
    return "".join(printable)[:LOGGED]
