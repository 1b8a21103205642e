"""Tables for a terminal of any usual width: numbers are never cut, and long method names are folded.

Three layouts are tried, the widest first: every number on one line and full names; folded names; no lines between the
columns, with an interval or a second value below its number.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.tables import Sheet, caption_lines, make_header, make_rows, make_sheets

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult
    from rich.table import Table

ROOMY, NARROWEST = 24, 8
"""Width of a folded name in characters: preferred, and in the narrowest terminal."""


def rich_table(comparison: Comparison) -> Group:
    """Return the tables of a comparison for the terminal, without its notes."""
    from rich.console import Group

    caption = caption_lines(comparison)
    main = Sheet(caption[0], make_header(comparison), make_rows(comparison), "\n".join(caption[1:]))
    return Group(*map(FittedTable, [main, *make_sheets(comparison)]))


@dataclass(frozen=True)
class FittedTable:
    """A table that adapts to the width of the terminal, with its title above and its explanation below."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.sheet.title, style="table.title")
        yield self._fit(options.max_width)
        yield Text(self.sheet.about, style="table.caption")

    def _fit(self, width: int) -> Table:
        numbers = [[cell.text for cell in row[1:]] for row in self.sheet.rows]
        longest = max((len(row[0].text) for row in self.sheet.rows), default=0)
        columns = self._column_widths(numbers, lines=2)
        room = width - sum(columns) - 3 * len(columns) - 4  # one line and two blanks per column
        if room >= min(longest, ROOMY):
            return self._build(numbers, columns, room, dense=False)
        numbers = [[break_cell(text) for text in row] for row in numbers]
        columns = self._column_widths(numbers, lines=9)
        return self._build(numbers, columns, width - sum(columns) - 2 * len(columns), dense=True)

    def _column_widths(self, numbers: list[list[str]], lines: int) -> list[int]:
        """Return the width of each number column: its longest line, or its header folded to `lines` lines."""
        widths = []
        for at, name in enumerate(self.sheet.header[1:]):
            cells = [len(line) for row in numbers for line in row[at].split("\n")]
            word = max(map(len, name.split()))
            head = next(size for size in range(word, len(name) + 1) if len(textwrap.wrap(name, size)) <= lines)
            widths.append(max([head, *cells]))
        return widths

    def _build(self, numbers: list[list[str]], columns: list[int], room: int, dense: bool) -> Table:
        from rich import box
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        table = Table()
        if dense:
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(self.sheet.header[0], no_wrap=True, vertical="top")
        for name, width in zip(self.sheet.header[1:], columns, strict=True):
            table.add_column(escape(textwrap.fill(name, width)), justify="right", no_wrap=True, min_width=width)
        for row, texts in zip(self.sheet.rows, numbers, strict=True):
            method = Text(fold_name(row[0].text, max(room, NARROWEST)))
            bold = ["bold" if cell.best else "" for cell in row[1:]]
            table.add_row(method, *(Text(text, style=style) for text, style in zip(texts, bold, strict=True)))
        return table


def break_cell(text: str) -> str:
    """Break a cell into lines: an interval or a second value goes below the number.

    Example:
        >>> break_cell("1.20× (1.02 to 1.41), 5/5").split("\\n"), break_cell("≥ 39.5 k / 54.1 k").split("\\n")
        (['1.20×', '(1.02 to 1.41)', '5/5'], ['≥ 39.5 k /', '54.1 k'])
    """
    return text.replace(" (", "\n(").replace("), ", ")\n").replace(" / ", " /\n")


def fold_name(name: str, width: int) -> str:
    """Fold a name into lines, if possible after a punctuation mark; all lines but the first are indented.

    Example:
        >>> fold_name("fedbalancer[w=2,deadline=slack:Median(by=5)]", 24).split("\\n")
        ['fedbalancer[w=2,', ' deadline=slack:', ' Median(by=5)]']
        >>> fold_name("sampleselection", 9).split("\\n")
        ['samplesel', ' ection']
    """
    lines = [""]
    for part in re.findall(r"[^,:\[+]*[,:\[+]+|[^,:\[+]+", name):
        if len(lines[-1]) + len(part) > width and lines[-1].strip():
            lines.append(" ")
        rest = lines.pop() + part
        while len(rest) > width:
            lines, rest = [*lines, rest[:width]], f" {rest[width:]}"
        lines.append(rest)
    return "\n".join(lines)
