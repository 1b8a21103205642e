"""The folder of an item: its numbers as Parquet and JSON, its drawings as PNG and SVG, its text as Markdown and a page.

Tasks may be measured on different days: the rows of a task replace the rows that it had, those of the others stay, and
all that is shown is made again from all of them. Beside the files of ours a hand-written `why.md` may say why the
figures differ from the paper's; it is shown, and never touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.errors import RunFolderError
from fedbalancer.files import write_bytes, write_json, write_text
from fedbalancer.paper.item import Frames, Item, Presentation
from fedbalancer.paper.page import page_html
from fedbalancer.paper.request import Request
from fedbalancer.paper.text import markdown
from fedbalancer.reporting.plotting import image_bytes
from fedbalancer.store import new_manifest
from fedbalancer.store.contents import make_folder

DOCUMENT, WHY = "item.json", "why.md"
DOTS_PER_INCH = 110


@dataclass(frozen=True)
class Written:
    """An item that was written: its folder, its page, and what it shows."""

    folder: Path
    page: Path
    shown: Presentation


def item_folder(out: Path, item: Item, request: Request) -> Path:
    """Where an item is written; at another scale than its own, or by the other rule, in a folder of its own."""
    scale = "" if request.scale == item.scale else f"-{request.scale}"
    rule = "" if request.rule == item.rule else f"-by-{request.rule}-rule"
    return out / f"{item.name}{scale}{rule}"


def part(request: Request, command: str, seconds: float, notes: list[str], runs: str = "") -> dict[str, Any]:
    """What is to be known of the measuring of one task; `runs` says how many of its runs this command made."""
    return {
        "command": command,
        "scale": request.scale,
        "seeds": request.seeds,
        "rule": request.rule,
        "settings": dict(request.settings),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "runs": runs,
        "versions": new_manifest()["versions"],
        "notes": notes,
    }


def write(item: Item, folder: Path, frames: Frames, parts: Mapping[str, Any], asked: Sequence[str]) -> Written:
    """Add newly measured tasks (their tables, and what is to be known of each) to the folder and show all of it. The
    result that is handed back is about the tasks `asked` for only."""
    make_folder(folder)
    known = {**read_document(folder).get("parts", {}), **parts}
    joined = {name: _joined(folder / f"{name}.parquet", frame, list(parts)) for name, frame in frames.items()}
    for name, frame in joined.items():
        write_bytes(folder / f"{name}.parquet", _parquet(frame))
    page = _show(item, folder, joined, known).page
    about = {name: frame.filter(pl.col("task").is_in(asked)) for name, frame in joined.items()}
    return Written(folder, page, item.present(about))


def renew(item: Item, folder: Path) -> Written:
    """Show anew what the folder of an item holds, without measuring anything: after a change of its why.md, or with a
    newer version of this package."""
    frames = _Tables({file.stem: _read(file) for file in sorted(folder.glob("*.parquet"))}, folder, item)
    try:
        return _show(item, folder, frames, read_document(folder)["parts"])
    except (pl.exceptions.ColumnNotFoundError, KeyError) as error:  # a row that lacks it says so with the latter
        column = str(error).splitlines()[0]
        raise RunFolderError(f"a table of {folder} has no column {column}; {frames.anew}") from error


class _Tables(dict[str, pl.DataFrame]):
    """The tables of a folder; one that an item asks for and that is not there is told by its file."""

    def __init__(self, tables: Mapping[str, pl.DataFrame], folder: Path, item: Item) -> None:
        super().__init__(tables)
        self.folder, self.anew = folder, f"`fedbalancer paper {item.name}` makes the item again"

    def __missing__(self, name: str) -> pl.DataFrame:
        raise RunFolderError(f"there is no {self.folder / name}.parquet; {self.anew}")


def _show(item: Item, folder: Path, frames: Frames, parts: Mapping[str, Any]) -> Written:
    shown = item.present(frames)
    for name, figure in shown.figures.items():
        write_bytes(folder / f"{name}.png", image_bytes(figure, "png", DOTS_PER_INCH))
        write_bytes(folder / f"{name}.svg", image_bytes(figure, "svg"))
    document = {
        "item": item.name, "title": item.title, "place": item.place, "headline": shown.headline, "parts": parts,
        "findings": [finding.to_json() for finding in shown.findings], "result": shown.json,
    }  # fmt: skip
    write_json(folder / DOCUMENT, document)
    why = read_why(folder)
    write_text(folder / f"{item.name}.md", markdown(document, shown, why))
    page = folder / f"{item.name}.html"
    write_text(page, page_html(document, shown, why))
    return Written(folder, page, shown)


def read_document(folder: Path) -> dict[str, Any]:
    """What item.json says; empty if there is none."""
    file = folder / DOCUMENT
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read ({error}); remove it, or choose another --out") from error
    if not isinstance(content, dict) or not isinstance(content.get("parts"), dict):
        raise RunFolderError(f"{file} is not the document of an item; choose another --out")
    return content


def read_why(folder: Path) -> str:
    """The hand-written paragraph, if there is one."""
    file = folder / WHY
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _joined(file: Path, frame: pl.DataFrame, tasks: list[str]) -> pl.DataFrame:
    if not file.is_file():
        return frame
    kept = _read(file).filter(~pl.col("task").is_in(tasks))
    return pl.concat([kept, frame], how="diagonal_relaxed") if kept.height else frame


def _read(file: Path) -> pl.DataFrame:
    try:
        found = pl.read_parquet(file, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFolderError(f"{file} cannot be read ({str(error).splitlines()[0]}); remove it") from error
    if "task" not in found.columns:
        raise RunFolderError(f"{file} is no table of an item: it has no column task; remove it")
    return found


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
