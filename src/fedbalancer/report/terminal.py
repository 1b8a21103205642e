"""A table in a terminal of any usual width: numbers are never cut, and a long name of a method goes over several lines.

What takes the least room is tried last: numbers on one line each and the names in full; then the names folded; then
without lines between the columns, and an interval, or what is behind a stroke, below its number.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbalancer.report.cells import Sheet

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

ROOMY, NARROWEST = 24, 8
"""Letters that a folded name should have on a line, and that it has in the narrowest terminal."""


@dataclass(frozen=True)
class Fitted:
    """A sheet that takes as much room as there is. What a reader must know stands around it in the full width."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.sheet.title, style="table.title")
        yield self._table(options.max_width)
        yield Text(self.sheet.about, style="table.caption")

    def _table(self, width: int) -> Table:
        numbers = [[cell.text for cell in row[1:]] for row in self.sheet.rows]
        longest = max((len(row[0].text) for row in self.sheet.rows), default=0)
        columns = self._widths(numbers, lines=2)
        room = width - sum(columns) - 3 * len(columns) - 4  # a line and two blanks to a column
        if room >= min(longest, ROOMY):
            return self._drawn(numbers, columns, room, dense=False)
        numbers = [[broken(text) for text in row] for row in numbers]
        columns = self._widths(numbers, lines=9)
        return self._drawn(numbers, columns, width - sum(columns) - 2 * len(columns), dense=True)

    def _widths(self, numbers: list[list[str]], lines: int) -> list[int]:
        """Of each column of numbers: its longest line, or what its header takes on so many lines."""
        found = []
        for at, name in enumerate(self.sheet.header[1:]):
            cells = [len(line) for row in numbers for line in row[at].split("\n")]
            word = max(map(len, name.split()))
            head = next(size for size in range(word, len(name) + 1) if len(textwrap.wrap(name, size)) <= lines)
            found.append(max([head, *cells]))
        return found

    def _drawn(self, numbers: list[list[str]], columns: list[int], room: int, dense: bool) -> Table:
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
            method = Text(folded(row[0].text, max(room, NARROWEST)))
            bold = ["bold" if cell.best else "" for cell in row[1:]]
            table.add_row(method, *(Text(text, style=style) for text, style in zip(texts, bold, strict=True)))
        return table


def broken(text: str) -> str:
    """A cell over several lines: an interval below its number, what was paid within the budget below the rest.

    >>> broken("1.20× (1.02 to 1.41), 5/5").split("\\n"), broken("≥ 39.5 k / 54.1 k").split("\\n")
    (['1.20×', '(1.02 to 1.41)', '5/5'], ['≥ 39.5 k /', '54.1 k'])
    """
    return text.replace(" (", "\n(").replace("), ", ")\n").replace(" / ", " /\n")


def folded(name: str, width: int) -> str:
    """A name over several lines, broken behind a sign where there is one; the lines after the first are set in.

    >>> folded("fedbalancer[w=2,deadline=slack:Median(by=5)]", 24).split("\\n")
    ['fedbalancer[w=2,', ' deadline=slack:', ' Median(by=5)]']
    >>> folded("sampleselection", 9).split("\\n")
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
