"""The plays of the Moby edition, one speech per line of JSON: play, speaker (one or several) and lines."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.plays import Speech


def read_moby(path: Path) -> list[Speech]:
    """All speeches; what several say together is said by each."""
    return [
        Speech(record["play"], role, tuple(record["lines"]))
        for number, record in enumerate(json_lines(path), start=1)
        for role in _checked(record, f"{path}, line {number}")["speaker"]
    ]


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of an xz-compressed file with one JSON object per line."""
    number = 1
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(f"a {type(record).__name__} instead of an object")
                yield record
                number += 1
    except (ValueError, EOFError, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())
        raise BadData(f"{path}, line {number}: not whole JSON ({reason}); fetch the file again") from error


def _checked(record: dict[str, Any], where: str) -> dict[str, Any]:
    texts = (record.get("speaker"), record.get("lines"))
    whole = all(isinstance(part, list) and all(isinstance(text, str) for text in part) for part in texts)
    if not (whole and isinstance(record.get("play"), str)):
        raise BadData(f"{where}: a speech needs play (text), speaker and lines (lists of text), not {record!r:.80}")
    return record
