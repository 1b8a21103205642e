"""The folder of an item: tables as Parquet, values as JSON, figures, a Markdown text and a page.

Tasks may be measured on different days. The rows of a task replace its earlier rows, those of other tasks remain, and
everything is presented again from all rows. A hand-written `why.md` can explain differences from the paper; it is shown
and never changed. The file README.md of the folder of results is an index of all items.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import FedBalancerError, RunFolderError
from fedbalancer.core.files import write_bytes, write_json, write_text
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.paper.item import Frames, Item, Listen, Presentation, Request, Work
from fedbalancer.paper.items import ITEMS, load_item
from fedbalancer.paper.page import escape_text, item_html, item_markdown
from fedbalancer.paper.pool import REUSED
from fedbalancer.reporting.plotting import image_bytes
from fedbalancer.store import new_manifest
from fedbalancer.store.contents import make_folder

DOCUMENT, WHY, README = "item.json", "why.md", "README.md"
DOTS_PER_INCH = 110
GENERATED = "<!-- written by `fedbalancer paper`; write your own text into the why.md of an item's folder -->"
INTRODUCTION = (
    "The paper's tables and figures, reproduced with `fedbalancer paper ITEM`. The page of an item has our values next "
    "to the paper's, a computed verdict for each, and why they differ. Its folder has the same page with interactive "
    "charts (`.html`), the charts (SVG and PNG) and the data as Parquet, with one row per seed."
)
REFERENCE = (
    "Speed-ups below are relative to the reference: the best FedAvg variant of each seed; in Figures 5a and 5b "
    "FedAvg+1T, and in Figure 7 the first method of each pair. The interval over seeds is 95%; a speed-up is resolved "
    "if the interval excludes 1, and &lt; marks an upper bound."
)
BOARD = (
    "All methods in one table, including those of other papers: [leaderboard](leaderboard.md). `fedbalancer "
    "leaderboard` on this folder rebuilds it, also as a page with filters."
)
SHAPE = (
    "Table 1 with the paper's users, cohort and sizes on generated data: [paper's shape](../benchmarks/paper-shape.md)."
)


@dataclass(frozen=True)
class WrittenItem:
    """An item that was written.

    Args:
        folder: Its folder.
        page: Its HTML page.
        shown: Its content.
    """

    folder: Path
    page: Path
    shown: Presentation


class RunCount:
    """Forwards events and counts the runs that were executed and those that were reused.

    Args:
        listen: Receives the events.
    """

    def __init__(self, listen: Callable[[JobEvent], None]) -> None:
        self._listen = listen
        self._reused: set[tuple[str, int]] = set()
        self._executed: set[tuple[str, int]] = set()

    def __call__(self, event: JobEvent) -> None:
        if event.kind == "done":
            (self._reused if event.why == REUSED else self._executed).add(event.key)
        self._listen(event)

    @property
    def text(self) -> str:
        """The counts in words; empty without runs."""
        if not self._reused | self._executed:
            return ""
        return f"{len(self._executed)} runs executed or continued, {len(self._reused - self._executed)} reused"


def make_item(
    item: Item,
    request: Request,
    out: Path,
    command: str,
    listen: Listen = lambda task, event: None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[WrittenItem, list[str]]:
    """Measure an item and write its folder.

    Each task is written as soon as it is measured, so an interruption or failure loses nothing of earlier tasks.

    Args:
        item: The item.
        request: The tasks and options.
        out: Folder of results; the item gets a folder inside.
        command: The command line, for the record.
        listen: Callback for events of runs.
        stopped: Function that returns whether to stop.

    Returns:
        The written item, and descriptions of failed runs.

    Raises:
        FedBalancerError: If the request is invalid, or nothing of a task can be scored.
        Stopped: If the user asked to stop.
    """
    item.check(request)
    folder, failed, measured = item_folder(out, item, request), [], []
    written: WrittenItem | None = None
    for task in request.tasks:
        count, started = RunCount(partial(listen, task)), time.monotonic()
        work = Work(request, task, count, stopped)
        frames = item.measure(work)
        if not any(frame.height for frame in frames.values()):
            raise FedBalancerError(f"nothing can be scored on {task}: {'; '.join(work.notes) or 'no run finished'}")
        name = str(next(iter(frames.values()))["task"][0])
        failed += [f"{task}: {note}" for note in work.notes if " failed: " in note]
        part = describe_part(request, command, time.monotonic() - started, work.notes, count.text)
        measured.append(name)
        written = write_item(item, folder, frames, {name: part}, measured)
        write_index(out)
    assert written is not None  # a request has at least one task
    return written, failed


def renew_item(folder: Path) -> WrittenItem:
    """Rewrite page, text and figures of an item, and the index, from the stored tables without measuring anything.

    Args:
        folder: The folder of the item.

    Raises:
        RunFolderError: If the folder is not that of an item, or a table is missing or damaged.
    """
    name = str(read_document(folder).get("item"))
    if name not in ITEMS:
        raise RunFolderError(f"{folder / DOCUMENT} does not describe an item of the paper: item = {name!r}")
    item = load_item(name)
    frames = _Tables({file.stem: _read_table(file) for file in sorted(folder.glob("*.parquet"))}, folder, item)
    try:
        written = _write_shown(item, folder, frames, read_document(folder)["parts"])
    except (pl.exceptions.ColumnNotFoundError, KeyError) as error:  # the latter from a row without the column
        column = str(error).splitlines()[0]
        raise RunFolderError(f"a table of {folder} has no column {column}; {frames.advice}") from error
    if (folder.parent / README).is_file():
        write_index(folder.parent)
    return written


def item_folder(out: Path, item: Item, request: Request) -> Path:
    """Return the folder of an item. Scales and rules other than the item's own have separate folders.

    Args:
        out: Folder of all results.
        item: The item.
        request: The options of the command.
    """
    scale = "" if request.scale == item.scale else f"-{request.scale}"
    rule = "" if request.rule == item.rule else f"-by-{request.rule}-rule"
    return out / f"{item.name}{scale}{rule}"


def describe_part(request: Request, command: str, seconds: float, notes: list[str], runs: str = "") -> dict[str, Any]:
    """Return the record of how one task was measured, for item.json.

    Args:
        request: The options of the command.
        command: The command.
        seconds: How long the measurement took.
        notes: Problems of the measurement.
        runs: The number of executed and reused runs.
    """
    return {
        "command": command,
        "scale": request.scale,
        "seeds": request.seeds_text,
        "rule": request.rule,
        "settings": dict(request.settings),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "runs": runs,
        "versions": new_manifest()["versions"],
        "notes": notes,
    }


def write_item(item: Item, folder: Path, frames: Frames, parts: Mapping[str, Any], tasks: Sequence[str]) -> WrittenItem:
    """Add newly measured tasks to the folder of an item and rewrite its page, text and figures.

    Args:
        item: The item.
        folder: Its folder.
        frames: The tables of the new tasks.
        parts: The record of each new task, see `describe_part`.
        tasks: The tasks of the returned presentation.

    Raises:
        RunFolderError: If the folder contains damaged files.
    """
    make_folder(folder)
    known = {**read_document(folder).get("parts", {}), **parts}
    joined = {name: _join_rows(folder / f"{name}.parquet", frame, list(parts)) for name, frame in frames.items()}
    for name, frame in joined.items():
        write_bytes(folder / f"{name}.parquet", _encode_table(frame))
    page = _write_shown(item, folder, joined, known).page
    requested = {name: frame.filter(pl.col("task").is_in(tasks)) for name, frame in joined.items()}
    return WrittenItem(folder, page, item.present(requested))


def read_document(folder: Path) -> dict[str, Any]:
    """Read item.json; empty if it does not exist.

    Raises:
        RunFolderError: If the file is damaged or not that of an item.
    """
    file = folder / DOCUMENT
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read ({error}); delete it or choose another --out") from error
    if not isinstance(content, dict) or not isinstance(content.get("parts"), dict):
        raise RunFolderError(f"{file} is not the document of an item; choose another --out")
    return content


def read_why(folder: Path) -> str:
    """Read the hand-written why.md; empty if it does not exist."""
    file = folder / WHY
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def write_index(out: Path) -> Path:
    """Write README.md with all items in `out`. A README.md that was not generated is left alone."""
    file = out / README
    if file.is_file() and not file.read_text(encoding="utf-8").startswith(GENERATED):
        return file
    folders = sorted((path.parent for path in out.glob(f"*/{DOCUMENT}")), key=lambda path: path.name)
    documents = [(folder, read_document(folder)) for folder in folders]
    rows = [_index_row(folder, document) for folder, document in documents]
    header = ["| Item | Title | Scale | Tasks (seeds) | Measured |", "|:--|:--|:--|:--|:--|"]
    board = [BOARD] if (out / "leaderboard.md").is_file() else []
    board += [SHAPE] if (out / "paper-shape").is_dir() else []
    text = [GENERATED, "# Results", INTRODUCTION, *board, "\n".join([*header, *rows]), REFERENCE]
    text += [_index_section(folder, document) for folder, document in documents]
    write_text(file, "\n\n".join(text) + "\n")
    return file


def _index_row(folder: Path, document: dict[str, Any]) -> str:
    parts = document["parts"]
    tasks = ", ".join(f"{task} ({part['seeds']})" for task, part in parts.items())
    measured = max((part["measured"][:10] for part in parts.values()), default="–")
    link = f"[{folder.name}]({folder.name}/{document['item']}.md)"
    scales = ", ".join(dict.fromkeys(part["scale"] for part in parts.values()))
    return f"| {link} | {_index_title(document)} | {scales} | {escape_text(tasks)} | {measured} |"


def _index_title(document: dict[str, Any]) -> str:
    """Return place and title of an item, and whether FedBalancer's settings were searched."""
    searched = any("--grid" in part["command"].split() for part in document["parts"].values())
    title = f"{escape_text(document['place'])}: {escape_text(document['title'])}"
    return f"{title}, with a search over FedBalancer's settings" if searched else title


def _index_section(folder: Path, document: dict[str, Any]) -> str:
    """Return the findings of an item and the commands that reproduce it."""
    commands = dict.fromkeys(part["command"] for part in document["parts"].values())
    page = f"[values, charts and differences from the paper]({folder.name}/{document['item']}.md)"
    parts = [
        f"## {folder.name}",
        f"{_index_title(document)} ({page}).",
        _list_findings(document),
        "\n".join(["```sh", *commands, "```"]),
    ]
    return "\n\n".join(parts)


def _list_findings(document: dict[str, Any]) -> str:
    """Return the headline of an item; a list if it has one finding per task."""
    findings = document["headline"].rstrip(".").split("; ")
    by_task = len(findings) > 1 and all(finding.partition(":")[0] in document["parts"] for finding in findings)
    if by_task:
        return "\n".join(f"- {escape_text(finding)}" for finding in findings)
    return escape_text(document["headline"])


class _Tables(dict[str, pl.DataFrame]):
    """The tables of a folder; the error for a missing table names its file."""

    def __init__(self, tables: Mapping[str, pl.DataFrame], folder: Path, item: Item) -> None:
        super().__init__(tables)
        self.folder, self.advice = folder, f"`fedbalancer paper {item.name}` measures the item again"

    def __missing__(self, name: str) -> pl.DataFrame:
        raise RunFolderError(f"there is no {self.folder / name}.parquet; {self.advice}")


def _write_shown(item: Item, folder: Path, frames: Frames, parts: Mapping[str, Any]) -> WrittenItem:
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
    write_text(folder / f"{item.name}.md", item_markdown(document, shown, why))
    page = folder / f"{item.name}.html"
    write_text(page, item_html(document, shown, why))
    return WrittenItem(folder, page, shown)


def _join_rows(file: Path, frame: pl.DataFrame, tasks: list[str]) -> pl.DataFrame:
    if not file.is_file():
        return frame
    kept = _read_table(file).filter(~pl.col("task").is_in(tasks))
    return pl.concat([kept, frame], how="diagonal_relaxed") if kept.height else frame


def _read_table(file: Path) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(file, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFolderError(f"{file} cannot be read ({str(error).splitlines()[0]}); delete it") from error
    if "task" not in frame.columns:
        raise RunFolderError(f"{file} is not a table of an item: it has no column task; delete it")
    return frame


def _encode_table(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
