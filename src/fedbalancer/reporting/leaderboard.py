"""The leaderboard: all results of a folder as tables of tasks and methods, on a page and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedbalancer.core.files import write_text
from fedbalancer.reporting.leaderboard_entries import Entry, is_ours, read_entries, seeds_text
from fedbalancer.reporting.page import read_asset
from fedbalancer.reporting.style import accuracy_text

PAGE, TEXT = "leaderboard.html", "leaderboard.md"
SIGNS = {"faster": "▲", "slower": "▼", "open": "○", "none": ""}
SIGN_WORDS = {
    "faster": "faster than the reference, resolved",
    "slower": "slower than the reference, resolved",
    "open": "not resolved by the seeds",
    "none": "never reached the target",
}
RULE = (
    "Speed-up: how many times as fast as the best FedAvg variant of the same comparison a method reached the target, "
    "with a 95% interval over seeds, followed by the accuracy at the end of the budget and the number of seeds that "
    "reached the target. ▲ the whole interval is above 1, ▼ below 1, ○ the seeds do not resolve it; < and > are "
    "bounds, because some runs never reached the target. Entries of other owners than the project were added by users "
    "and have their own references; “ours” is this project's own method."
)
NOTE = (
    "These seeds differ from those of the paper's table and so do the references, so single cells of the two tables "
    "are not comparable. The number of seeds differs between cells; each is relative to the best FedAvg variant on its "
    "own seeds. FedBuff and TimelyFL were measured in earlier forms: FedBuff filled free places only after the next "
    "step, and TimelyFL trained whole models."
)
BEST_SETTINGS = (
    "On every seed, fedbalancer-A has the one with the highest accuracy and fedbalancer-S the fastest; "
    "cross-validated: selected on the other seeds."
)


@dataclass(frozen=True)
class Row:
    """A method of one owner, with its entry for every task of the board."""

    method: str
    owner: str
    cells: tuple[Entry | None, ...]

    @property
    def is_grid_setting(self) -> bool:
        return any(entry is not None and entry.is_grid_setting for entry in self.cells)

    @property
    def is_ours(self) -> bool:
        return is_ours(self.method)


@dataclass(frozen=True)
class Board:
    """A table of methods and tasks for one scale, rule, target and series of seeds."""

    scale: str
    rule: str
    target_share: float
    series: str
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        rule = {"fair": "fair rule", "paper": "the paper's rule"}.get(self.rule, self.rule)
        parts = [f"scale {self.scale}" if self.scale else "", rule, f"target {self.target_share:.0%} of the reference"]
        return f"{self._seeds}{', '.join(filter(None, parts))}"

    @property
    def note(self) -> str:
        """A note about a separate series of seeds; empty for the main series."""
        return NOTE if self.series else ""

    @property
    def _seeds(self) -> str:
        """The range of seeds of a separate series."""
        cells = [cell for row in self.rows for cell in row.cells if cell is not None]
        ends = [(cell.first_seed, cell.first_seed + cell.seeds - 1) for cell in cells if cell.first_seed is not None]
        if not self.series or not ends:
            return ""
        return f"{seeds_text(min(first for first, _ in ends), max(last for _, last in ends))}, {self.series}: "


@dataclass(frozen=True)
class Leaderboard:
    """The files of a leaderboard and its content."""

    page: Path
    text: Path
    boards: tuple[Board, ...]
    entries: tuple[Entry, ...]


def write_leaderboard(folder: Path) -> Leaderboard:
    """Write leaderboard.html and leaderboard.md of a folder of results.

    Args:
        folder: The folder.

    Returns:
        The files and their content.

    Raises:
        RunFolderError: If the folder contains no results, or a file is damaged.
    """
    entries = read_entries(folder)
    boards = make_boards(entries)
    write_text(folder / PAGE, leaderboard_html(entries, boards))
    write_text(folder / TEXT, leaderboard_markdown(boards))
    return Leaderboard(folder / PAGE, folder / TEXT, tuple(boards), tuple(entries))


def make_boards(entries: Iterable[Entry]) -> list[Board]:
    """Make a board for every scale, rule, target and series; the fair rule and the highest target come first."""
    kinds: dict[tuple[str, str, float, str], list[Entry]] = {}
    for entry in entries:
        if entry.is_on_board:
            kinds.setdefault(entry.board, []).append(entry)
    order = sorted(kinds, key=lambda kind: (kind[1] != "fair", -kind[2], kind[0] != "small", kind[0], kind[3]))
    return [_make_board(kind, kinds[kind]) for kind in order]


def _make_board(kind: tuple[str, str, float, str], entries: Sequence[Entry]) -> Board:
    """Make one board. Of several entries for a cell, the one with most seeds is used; of equals, the first."""
    tasks = tuple(dict.fromkeys(entry.task for entry in entries))
    names = dict.fromkeys((entry.method, entry.owner) for entry in entries)
    cells: dict[tuple[str, str, str], Entry] = {}
    for entry in sorted(entries, key=lambda entry: -entry.seeds):
        cells.setdefault((entry.method, entry.owner, entry.task), entry)
    rows = [Row(*name, tuple(cells.get((*name, task)) for task in tasks)) for name in names]
    return Board(*kind, tasks, tuple(rows))


def ratio_text(entry: Entry) -> str:
    """Format the speed-up or its bound; "never" if the target was never reached.

    Example:
        >>> ratio_text(Entry("har", "fedbalancer", ratio=1.56, reached=3)), ratio_text(Entry("har", "prox+1t", seeds=3))
        ('1.56', 'never')
        >>> ratio_text(Entry("har", "prox+1t", ratio=0.4, ratio_bound="<"))
        '< 0.40'
    """
    if not entry.ratio:
        return "never" if entry.seeds and not entry.reached else "–"
    return f"{entry.ratio_bound} {entry.ratio:.2f}".strip()


def reached_text(entry: Entry) -> str:
    """Format the number of seeds that reached the target.

    Example:
        >>> reached_text(Entry("har", "fedbalancer", seeds=10, reached=9)), reached_text(Entry("har", "fedbalancer"))
        ('9 of 10', '')
    """
    return f"{entry.reached} of {entry.seeds}" if entry.seeds else ""


def interval_text(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval; empty if there is none."""
    if low is None and high is None:
        return ""
    ends = ["…" if end is None else f"{end:.{digits}f}" for end in (low, high)]
    return f"{ends[0]} to {ends[1]}"


def leaderboard_html(entries: list[Entry], boards: list[Board]) -> str:
    """Render the page as one HTML file that loads nothing else."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    choices = {
        "task": _choices(entry.task for entry in entries),
        "scale": _choices(entry.scale for entry in entries),
        "rule": _choices(entry.rule for entry in entries),
        "target": _choices(f"{entry.target_share:.0%}" for entry in entries),
        "item": _choices(entry.item for entry in entries),
        "owner": _choices(entry.owner or "project" for entry in entries),
    }
    return environment.from_string(read_asset("leaderboard.html")).render(
        boards=boards, entries=entries, choices=choices, rule=RULE, signs=SIGNS, sign_words=SIGN_WORDS,
        ratio_text=ratio_text, interval_text=interval_text, accuracy_text=accuracy_text, reached_text=reached_text,
        css=Markup(read_asset("leaderboard.css")), script=Markup(read_asset("leaderboard.js")),
    )  # fmt: skip


def leaderboard_markdown(boards: list[Board]) -> str:
    """Return the boards as Markdown tables."""
    parts = ["# Leaderboard", RULE]
    for board in boards:
        header = ["Method", "Owner", *board.tasks]
        rows = [row for row in board.rows if not row.is_grid_setting]
        lines = [_line(map(_escape, header)), "|:--|:--|" + "--:|" * len(board.tasks)]
        lines += [_line([_method_text(row), _escape(row.owner or "project"), *map(_cell, row.cells)]) for row in rows]
        parts += filter(None, [f"## {_escape(board.title)}", board.note, "\n".join(lines)])
        if left := len(board.rows) - len(rows):
            best = f" {BEST_SETTINGS}" if any(row.method.startswith("fedbalancer-A") for row in rows) else ""
            parts.append(f"{PAGE} also lists {left} settings of FedBalancer that were searched.{best}")
    return "\n\n".join(parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _method_text(row: Row) -> str:
    return f"{_escape(row.method)}{' (ours)' if row.is_ours else ''}"


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    interval = interval_text(entry.ratio_low, entry.ratio_high, 2)
    ratio = f"{ratio_text(entry)}{f' ({interval})' if interval else ''} {SIGNS[entry.verdict]}".strip()
    # The Markdown links to Markdown: an item has a text beside its page, an added comparison only a page.
    link = entry.link if entry.owner else entry.link.removesuffix(".html") + ".md" * entry.link.endswith(".html")
    linked = f"[{ratio}]({link})" if link else ratio
    return ", ".join(filter(None, [linked, accuracy_text(entry.accuracy), reached_text(entry)]))


def _escape(text: str) -> str:
    """Escape Markdown and HTML in a table cell."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return " ".join(text.split())


def _choices(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})
