"""What a leaderboard shows: one entry for a method on a task, from the tables that `fedbalancer paper` writes, and from
comparisons that users added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import polars as pl

from fedbalancer.errors import RunFolderError

METHODS, BEST, ITEM, OWN, ENTRY = "methods.parquet", "best.parquet", "item.json", "own", "entry.json"
MAIN = "table1"
"""The item whose methods stand in the tables of tasks x methods; the others are in the list."""
NEEDED = ("task", "method")


@dataclass(frozen=True)
class Entry:
    """A method on a task. `ratio` is its speed-up over the reference with a 95 % interval, where there is one, or a
    bound of it if `ratio_bound` is "<" or ">"; the accuracies of clients are those of the final model on
    their own data; `whose` is empty for results of the project; `link` leads, from the leaderboard's folder, to where
    it comes from."""

    task: str
    method: str
    scale: str = ""
    variant: str = ""
    rule: str = ""
    target_share: float = 1.0
    seeds: int = 0
    reached: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_bound: str = ""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    client_median: float | None = None
    client_worst_decile: float | None = None
    item: str = ""
    group: str = ""
    whose: str = ""
    link: str = ""
    measured: str = ""

    @property
    def verdict(self) -> Literal["faster", "slower", "open", "none"]:
        """Whether the seeds resolve that it is faster or slower than the reference."""
        if self.ratio is None or (not self.ratio and not self.reached):  # the paper's 0 for "never"
            return "none"
        if self.ratio_low is not None and self.ratio_low > 1:
            return "faster"
        return "slower" if self.ratio_high is not None and self.ratio_high < 1 else "open"

    @property
    def of_a_grid(self) -> bool:
        """Whether it is one of the settings over which the main item looks for the best: shown if asked for."""
        return self.item == MAIN and "[" in self.method

    @property
    def on_the_board(self) -> bool:
        return bool(self.whose) or self.item == MAIN

    @property
    def board(self) -> tuple[str, str, float]:
        """Entries are comparable where scale, rule and target are the same."""
        return self.scale, self.rule, self.target_share


def read_entries(folder: Path) -> list[Entry]:
    """All entries of a folder of results; an error if there is none."""
    if not folder.is_dir():
        raise RunFolderError(
            f"there is no folder {folder}; give one that `fedbalancer paper` or `leaderboard add` wrote"
        )
    found = [entry for file in sorted(folder.glob(f"*/{METHODS}")) for entry in _of_item(folder, file)]
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
    rows = _rows(file) + (_rows(best) if best.is_file() and pl.read_parquet_schema(best).keys() >= set(NEEDED) else [])
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
    try:
        frame = pl.read_parquet(file, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFolderError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
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
