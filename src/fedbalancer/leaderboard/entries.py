"""All entries of a folder: from the tables that `fedbalancer paper` writes, from tables of ratios beside them, and from
comparisons that users added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fedbalancer.errors import RunFolderError
from fedbalancer.leaderboard.entry import Entry
from fedbalancer.leaderboard.ratios import read_ratios
from fedbalancer.leaderboard.tables import METHODS, OWN, columns, table

BEST, ITEM, ENTRY = "best.parquet", "item.json", "entry.json"
NEEDED = ("task", "method")


def read_entries(folder: Path) -> list[Entry]:
    """All entries of a folder of results; an error if there is none."""
    if not folder.is_dir():
        raise RunFolderError(
            f"there is no folder {folder}; give one that `fedbalancer paper` or `leaderboard add` wrote"
        )
    found = [entry for file in sorted(folder.glob(f"*/{METHODS}")) for entry in _of_item(folder, file)]
    found += read_ratios(folder)
    found += [entry for file in sorted(folder.glob(f"{OWN}/*/{METHODS}")) for entry in _of_user(folder, file)]
    if not found:
        raise RunFolderError(f"{folder} holds no results; `fedbalancer paper table1` and `leaderboard add` write some")
    return found


def _of_item(folder: Path, file: Path) -> list[Entry]:
    about = _json(file.with_name(ITEM))
    item = str(about.get("item") or file.parent.name)
    page = file.with_name(f"{item}.html")
    link = quote((page if page.is_file() else file.parent).relative_to(folder).as_posix())
    parts = about.get("parts")
    best = file.with_name(BEST)  # FedBalancer-A and -S, where the settings of Table 2 were run
    rows = _rows(file) + (_rows(best) if best.is_file() and columns(best) >= set(NEEDED) else [])
    return [_entry(row, item=item, link=link, whose="", measured=_day(parts, str(row["task"]))) for row in rows]


def _of_user(folder: Path, file: Path) -> list[Entry]:
    about = _json(file.with_name(ENTRY))
    name = str(about.get("name") or file.parent.name)
    link = str(about.get("link") or "")
    if not link or urlsplit(link).scheme or link.startswith("//"):  # a place in this folder or beside it, no other
        link = quote(file.parent.relative_to(folder).as_posix())
    measured = str(about.get("added") or "")[:10]
    return [_entry(row, item=OWN, link=link, whose=name, measured=measured) for row in _rows(file)]


def _rows(file: Path) -> list[dict[str, Any]]:
    frame = table(file)
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise RunFolderError(f"{file} is no table of methods: it has no column {', '.join(absent)}")
    return frame.to_dicts()


def _entry(row: Mapping[str, Any], **more: str) -> Entry:
    """An entry from a row; columns that are not an entry's are left aside, and empty ones are as their defaults."""
    known = {each.name for each in fields(Entry)}
    return Entry(**{name: value for name, value in row.items() if name in known and value is not None} | more)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _day(parts: Any, task: str) -> str:
    """When a task of an item was measured, as far as its document says it."""
    part = parts.get(task) if isinstance(parts, dict) else None
    return str(part.get("measured") or "")[:10] if isinstance(part, dict) else ""
