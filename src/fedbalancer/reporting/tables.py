"""The tables of a comparison (scores, other targets, cost, fairness), as cells, as Markdown and in a terminal.

In a terminal of any usual width, numbers are never cut, and long method names are folded. Three layouts are tried, the
widest first: every number on one line and full names; folded names; no lines between the columns, with an interval or a
second value below its number.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbalancer.core.metrics import Metric
from fedbalancer.reporting.comparison import Comparison, Cost, MethodScore, TargetScore
from fedbalancer.reporting.ratio import Estimate, Ratio
from fedbalancer.reporting.style import size_text, time_text
from fedbalancer.store.rows import TEST_DATA

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult
    from rich.table import Table


HEADER = ("Method", "Speed-up", "Reached", "Median time")
FEWEST_SHOWN = 3
"""Minimum number of seeds for showing an interval; that of two seeds often spans 0 to thousands."""


@dataclass(frozen=True)
class Cell:
    """The text of a table cell, and whether its value is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table with a row per method, its title, and an explanation (`about`)."""

    title: str
    header: tuple[str, ...]
    rows: list[list[Cell]]
    about: str = ""


def make_header(comparison: Comparison) -> tuple[str, ...]:
    """Return the header of the main table."""
    return (*HEADER, f"Final {comparison.metric.title}")


def make_rows(comparison: Comparison) -> list[list[Cell]]:
    """Return the cells of the main table under `make_header`, in the order of the comparison."""
    speedups = [method.speedup.mean for method in comparison.methods if can_rank(method)]
    fastest = max((mean for mean in speedups if mean is not None), default=None)
    best = _best((method.final.mean for method in comparison.methods), comparison.metric)
    main = comparison.targets[0]
    return [
        [
            Cell(method.method),
            Cell(speedup_text(method), can_rank(method) and method.speedup.mean == fastest),
            Cell(f"{method.reached}/{len(method.scores)}"),
            Cell(median_text(method.at(main))),
            Cell(estimate_text(method.final, 3), method.final.mean is not None and method.final.mean == best),
        ]
        for method in comparison.methods
    ]


def make_sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables that follow the main table, without those that have no values."""
    if not comparison.seeds:
        return []
    sheets = [_targets_sheet(comparison), _costs_sheet(comparison), _clients_sheet(comparison)]
    return [sheet for sheet in sheets if any(cell.text != "–" for row in sheet.rows for cell in row[1:])]


def _targets_sheet(comparison: Comparison) -> Sheet:
    main, *others = comparison.targets
    header = [f"At {share:.0%}" for share in others] + [f"First touch of {main:.0%}", "Paired test"]
    rows = []
    for method in comparison.methods:
        scores = [method.at(share) for share in others]
        cells = [f"{ratio_text(each.ratio)}, {each.reached}/{each.runs}" if each.runs else "–" for each in scores]
        at_main = method.at(main)
        cells += [ratio_text(at_main.touch), "–" if at_main.ratio.p is None else f"p = {at_main.ratio.p:.2g}"]
        rows.append([Cell(method.method), *map(Cell, cells)])
    about = (
        f"Speed-up over {comparison.reference} at other shares of its final {comparison.metric.title}, and at the "
        "first single evaluation that reaches the target."
    )
    return Sheet("Other targets", ("Method", *header), rows, about)


def _costs_sheet(comparison: Comparison) -> Sheet:
    rows = []
    for method in comparison.methods:
        at = method.at(comparison.targets[0])
        least = "≥ " if at.reached < at.runs else ""
        rows.append([Cell(method.method), *map(Cell, _cost_texts(least, at.cost, method.cost))])
    header = ("Method", "Samples trained", "Device time", "Sent down", "Sent up")
    about = (
        "Until the target / within the budget, mean over seeds, including failed clients and lost rounds. "
        "≥: some runs never reach the target and count with their whole cost."
    )
    return Sheet("Cost on the devices", header, rows, about)


def _cost_texts(least: str, until: Cost, within: Cost) -> list[str]:
    pairs = (
        (count_text(until.sample_passes), count_text(within.sample_passes)),
        (hours_text(until.device_s), hours_text(within.device_s)),
        (size_text(until.down_bytes), size_text(within.down_bytes)),
        (size_text(until.up_bytes), size_text(within.up_bytes)),
    )
    return ["–" if {a, b} == {"–"} else f"{least}{a} / {b}" for a, b in pairs]


def _clients_sheet(comparison: Comparison) -> Sheet:
    by_method = {method.method: method.fairness for method in comparison.methods}
    metric = comparison.metric
    best = _best((fairness.worst_decile for fairness in by_method.values()), metric)
    rows = []
    for name, fairness in by_method.items():
        slow = fairness.by_device.get("slow", {})
        worst = fairness.worst_decile
        rows.append([
            Cell(name), Cell(_number(fairness.median)), Cell(_number(worst), worst is not None and worst == best),
            Cell(_number(fairness.jain)), Cell(_percent(fairness.never)), Cell(_number(fairness.gini, 2)),
            Cell(_shares(slow.get("clients"), slow.get("places"))), Cell(_number(slow.get(metric.name))),
        ])  # fmt: skip
    header = (
        "Method", "Median", "Worst decile", "Jain's index", "Never selected", "Gini", "Slow → selected", "Slow median",
    )  # fmt: skip
    title = metric.title
    held_out = any(fairness.tested_on == TEST_DATA for fairness in by_method.values())
    data = "own test data, which are not trained on" if held_out else "own training data"
    about = (
        f"{metric.heading} of the model at the end of the budget on each client's {data}: median client, "
        "worst decile, and Jain's index of equality. Selections until then: clients that were never selected, and the "
        f"Gini coefficient. Slow devices: their share of the clients → of the selections, and their median {title}."
    )
    return Sheet("Fairness between clients", header, rows, about)


def can_rank(method: MethodScore) -> bool:
    """Return whether the speed-up can be the best: it cannot if only an upper bound is known."""
    speedup = method.speedup
    return method.reached > 0 and speedup.mean is not None and not (isinstance(speedup, Ratio) and speedup.bound == "<")


def speedup_text(method: MethodScore) -> str:
    """Format the speed-up, by the fair rule with its interval, or "never" if the target was never reached."""
    speedup = method.speedup
    if isinstance(speedup, Ratio):
        return f"never, {ratio_text(speedup)}" if method.scores and not method.reached else ratio_text(speedup)
    return "never" if method.scores and not method.reached else estimate_text(speedup, 2)


def ratio_text(ratio: Ratio) -> str:
    """Format a ratio and its interval.

    Example:
        >>> ratio_text(Ratio(2.0, 0.1, 1.5, 2.5)), ratio_text(Ratio(0.5, None, None, 0.6, "<")), ratio_text(Ratio(None))
        ('2.00× (1.50 to 2.50)', '< 0.50× (up to 0.60)', '–')
        >>> ratio_text(Ratio(2.0, 0.1, 0.01, 512.0, seeds=2))
        '2.00×'
    """
    if ratio.mean is None:
        return "–"
    text = f"{ratio.bound} {ratio.mean:.2f}×".strip()
    interval = interval_text(ratio) if shows_interval(ratio.seeds) else ""
    return f"{text} ({interval})" if interval else text


def shows_interval(seeds: int) -> bool:
    """Return whether `seeds` seeds are enough to show an interval; 0 means an unknown number."""
    return not 0 < seeds < FEWEST_SHOWN


def interval_text(ratio: Estimate) -> str:
    """Format the known ends of the 95% interval."""
    low, high = ratio.low, ratio.high
    if low is not None and high is not None:
        return f"{low:.2f} to {high:.2f}"
    return f"from {low:.2f}" if low is not None else f"up to {high:.2f}" if high is not None else ""


def median_text(target: TargetScore) -> str:
    """Format the median time, or its lower bound."""
    if target.median_s is not None:
        return f"{target.median_s:,.0f} s"
    return "–" if target.above_s is None else f"> {target.above_s:,.0f} s"


def estimate_text(estimate: Estimate, digits: int) -> str:
    """Format mean ± standard deviation, as far as they are defined."""
    if estimate.mean is None:
        return "–"
    return f"{estimate.mean:.{digits}f}" + ("" if estimate.std is None else f" ± {estimate.std:.{digits}f}")


def count_text(count: float | None) -> str:
    """Format a count with three digits and a suffix.

    Example:
        >>> count_text(950), count_text(1_234_567), count_text(None)
        ('950', '1.23 M', '–')
    """
    if count is None:
        return "–"
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def hours_text(time_s: float | None) -> str:
    """Format device seconds in seconds or hours.

    Example:
        >>> hours_text(90.0), hours_text(36000.0), hours_text(None)
        ('90 s', '10 h', '–')
    """
    if time_s is None:
        return "–"
    return f"{time_s:.0f} s" if time_s < 3600 else f"{time_s / 3600:.3g} h"


def markdown_table(comparison: Comparison) -> str:
    """Return the tables as Markdown, the best of each column in bold, with captions and notes."""
    above, *below = map(escape_html, caption_lines(comparison))
    parts = [above, _grid(make_header(comparison), make_rows(comparison)), "\n".join(below)]
    parts += ["\n".join(f"- {escape_html(note)}" for note in comparison.notes)]
    for sheet in make_sheets(comparison):
        parts += [f"## {sheet.title}", sheet.about, _grid(sheet.header, sheet.rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def caption_lines(comparison: Comparison) -> list[str]:
    """Return the caption of the main table: task, target, budget, reference and scoring rule."""
    name = f"{comparison.task or 'unnamed task'}{f' ({comparison.variant})' if comparison.variant else ''}"
    count = len(comparison.seeds)
    if comparison.target is None or comparison.budget_s is None:
        return [f"Task {name}: nothing scored yet.", reference_line(comparison)]
    average = f", mean of {count} seeds" if count > 1 else ", one seed"
    seeds = ", ".join(str(seed.seed) for seed in comparison.seeds)
    target = f"target {comparison.metric.title} {comparison.target:.3f}"
    first = f"Task {name}: {target}, budget {time_text(comparison.budget_s)}{average}."
    rule = _fair_lines(comparison) if comparison.rule == "fair" else _paper_lines(comparison)
    return [
        first,
        reference_line(comparison),
        *rule,
        f"± is the sample standard deviation over seeds (ddof 1); seeds: {seeds}.",
    ]


def reference_line(comparison: Comparison) -> str:
    """Return a sentence about what the speed-ups are relative to."""
    if comparison.fedavg_reference:
        return (
            "Target and speed-up of each seed are relative to the FedAvg variant with the best final "
            f"{comparison.metric.title} on that seed."
        )
    first = comparison.methods[0].method if comparison.methods else "the first method"
    return f"Target and speed-up of each seed are relative to {first}, the first method (there is no FedAvg variant)."


def _rounds(comparison: Comparison) -> str:
    return f"{comparison.rounds} rounds" if comparison.rounds else "the task's rounds"


def _side(comparison: Comparison) -> str:
    return "at or above" if comparison.metric.higher_is_better else "at or below"


def _fair_lines(comparison: Comparison) -> list[str]:
    return [
        f"Budget: the simulated clock of fedavg+1t after {_rounds(comparison)}. All methods are evaluated on the same "
        "grid of simulated seconds.",
        f"A target is reached when the mean of three consecutive evaluations is {_side(comparison)} it. The final "
        f"{comparison.metric.title} is this mean at the end of the budget.",
        "Speed-up: geometric mean of the paired ratios with its 95% interval (bootstrap; under five seeds Student's t "
        "on the logarithms; under three seeds no interval is shown).",
        "A run that never reaches the target is censored at its last second: its ratio is a bound (<) and its time a "
        "lower bound (>). Median time: Kaplan-Meier.",
    ]


def _paper_lines(comparison: Comparison) -> list[str]:
    start = comparison.stamp == "start"
    stamp = "start (as in the authors' notebooks)" if start else "end"
    rounds = _rounds(comparison)
    clock = f"at the start of the last of {rounds}" if start else f"after {rounds}"
    return [
        "Scored by the paper's rule: evaluations after rounds; a target is reached at the first evaluation "
        f"{_side(comparison)} it.",
        f"Budget: the simulated clock of fedavg+1t {clock}. Final {comparison.metric.title}: the last evaluation "
        "within it.",
        f"An evaluation counts at the {stamp} of its round.",
        "A target that is never reached counts as 0 in the mean. There is then no interval, because this 0 is not "
        "measured.",
    ]


def escape_html(text: str) -> str:
    """Escape HTML tags in a text for Markdown, such as in the name of a task.

    Example:
        >>> escape_html("< 1.2 of <b>")
        '< 1.2 of &lt;b>'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def escape_cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return escape_html(text).replace("|", "\\|").replace("\n", " ")


def _grid(header: Sequence[str], rows: list[list[Cell]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|:--{'|--:' * (len(header) - 1)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_markdown, row))} |" for row in rows)])


def _markdown(cell: Cell) -> str:
    text = escape_cell(cell.text)
    return f"**{text}**" if cell.best else text


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _shares(clients: float | None, places: float | None) -> str:
    return "–" if clients is None or places is None else f"{clients:.0%} → {places:.0%}"


def _best(values: Iterable[float | None], metric: Metric) -> float | None:
    known = (value for value in values if value is not None)
    return max(known, key=lambda value: metric.sign * value, default=None)


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
