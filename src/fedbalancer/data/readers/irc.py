"""Chat messages by author, one per line of JSON (user, day, t, text), as words like those of LEAF's Reddit comments."""

from __future__ import annotations

import re
from pathlib import Path

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.moby import json_lines

_ADDRESSED = re.compile(r"^\S+:(?=\s)")
_TOKEN = re.compile(r"<[a-z]+>|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]+")
_LINK = re.compile(r"(?:https?://|www\.)\S+")


def read_irc(path: Path) -> dict[str, list[list[str]]]:
    """The messages of every user as words, in order of time; messages without any are left out."""
    stamped: dict[str, list[tuple[str, str, int, list[str]]]] = {}
    for number, record in enumerate(json_lines(path), start=1):
        user, day, time, text = (record.get(key) for key in ("user", "day", "t", "text"))
        if not (isinstance(user, int) and all(isinstance(part, str) for part in (day, time, text))):
            raise BadData(f"{path}, line {number}: a message needs user (number), day, t and text, not {record!r:.80}")
        found = words(str(text))
        if found:
            stamped.setdefault(f"user{user:05d}", []).append((str(day), str(time), number, found))
    return {user: [entry[3] for entry in sorted(entries)] for user, entries in stamped.items()}


def words(text: str) -> list[str]:
    """Lower-case words, and runs of other signs, without what is not ASCII. Links, and the name of whom a message is
    for, become one word each, as LEAF has it for links and user names.

    >>> words("ann: You don't need https://example.org !")
    ['<user>', 'you', "don't", 'need', '<url>', '!']
    """
    plain = _ADDRESSED.sub("<user> ", text.encode("ascii", "ignore").decode().strip())
    return _TOKEN.findall(_LINK.sub(" <url> ", plain).lower())
