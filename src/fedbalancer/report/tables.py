"""The tables of a comparison: for a text file, and for the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbalancer.report.cells import (
    HEADER,
    Cell,
    Sheet,
    estimate_text,
    further_sheets,
    speedup_text,
    table_rows,
)
from fedbalancer.report.style import seconds
from fedbalancer.report.terminal import Fitted
from fedbalancer.report.values import Comparison

if TYPE_CHECKING:
    from rich.console import Group

__all__ = [
    "HEADER",
    "Cell",
    "Sheet",
    "caption_lines",
    "estimate_text",
    "further_sheets",
    "markdown_table",
    "reference_rule",
    "rich_table",
    "speedup_text",
    "table_rows",
]


def markdown_table(comparison: Comparison) -> str:
    """The tables as Markdown, the best of each column in bold, with what a reader must know above and below them."""
    caption = caption_lines(comparison)
    above, *below = map(without_html, caption)
    parts = [above, _grid(HEADER, table_rows(comparison)), "\n".join(below)]
    parts += ["\n".join(f"- {without_html(note)}" for note in comparison.notes)]
    for sheet in further_sheets(comparison):
        parts += [f"## {sheet.title}", sheet.about, _grid(sheet.header, sheet.rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def rich_table(comparison: Comparison) -> Group:
    """The tables for the terminal; the notes of the comparison are for the caller to print."""
    from rich.console import Group

    caption = caption_lines(comparison)
    main = Sheet(caption[0], HEADER, table_rows(comparison), "\n".join(caption[1:]))
    return Group(*map(Fitted, [main, *further_sheets(comparison)]))


def caption_lines(comparison: Comparison) -> list[str]:
    """What was compared, against what, and how to read it."""
    name = f"{comparison.task or 'unnamed task'}{f' ({comparison.variant})' if comparison.variant else ''}"
    count = len(comparison.seeds)
    if comparison.target is None or comparison.budget_s is None:
        return [f"Task {name}: nothing scored yet.", reference_rule(comparison)]
    averaged = f", mean of {count} seeds" if count > 1 else ", one seed"
    seeds = ", ".join(str(seed.seed) for seed in comparison.seeds)
    first = f"Task {name}: target accuracy {comparison.target:.3f}, budget {seconds(comparison.budget_s)}{averaged}."
    rule = _fair_lines(comparison) if comparison.rule == "fair" else _paper_lines(comparison)
    return [
        first,
        reference_rule(comparison),
        *rule,
        f"± is the sample standard deviation over seeds (ddof 1); seeds: {seeds}.",
    ]


def _rounds(comparison: Comparison) -> str:
    return f"{comparison.rounds} rounds" if comparison.rounds else "the task's rounds"


def _fair_lines(comparison: Comparison) -> list[str]:
    return [
        f"Budget: the simulated clock of fedavg+1t after {_rounds(comparison)}. All methods are evaluated on one grid "
        "of simulated seconds;",
        "a target is reached when the mean of three evaluations in a row is at it, and the final accuracy is that mean "
        "at the budget's end.",
        "Speed-up: geometric mean of the paired ratios with its 95 % interval (bootstrap; under five seeds Student's t "
        "of the logarithms, under three too wide to be shown).",
        "A run that never came to the target is censored where it ended: its ratio is a bound (<), its time is above "
        "(>). Median time: Kaplan-Meier.",
    ]


def _paper_lines(comparison: Comparison) -> list[str]:
    start = comparison.stamp == "start"
    stamp = "start (the authors' notebooks)" if start else "end"
    rounds = _rounds(comparison)
    clock = f"at the start of the last of {rounds}" if start else f"after {rounds}"
    return [
        "Scored by the paper's rule: evaluations by rounds, and the first that touches the target counts.",
        f"Budget: the simulated clock of fedavg+1t {clock}; final accuracy: the last evaluation within it.",
        f"Times are stamped with the {stamp} of the evaluated round.",
        "A target that was never reached counts as 0 in the mean, and gives no interval: that 0 was not measured.",
    ]


def reference_rule(comparison: Comparison) -> str:
    """What the speed-ups are relative to."""
    if comparison.fedavg_reference:
        return "Target and speed-up of each seed: against the FedAvg variant with the best final accuracy on that seed."
    first = comparison.methods[0].method if comparison.methods else "the first method"
    return f"Target and speed-up of each seed: against {first}, the first method listed (no FedAvg variant took part)."


def _grid(header: Sequence[str], rows: list[list[Cell]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|:--{'|--:' * (len(header) - 1)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_markdown, row))} |" for row in rows)])


def without_html(text: str) -> str:
    """A text of others, such as a task's name, with nothing in it that Markdown would take for HTML.

    >>> without_html("< 1.2 of <b>")
    '< 1.2 of &lt;b>'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def plain_markdown(text: str) -> str:
    """The same for a cell: no other column or line either."""
    return without_html(text).replace("|", "\\|").replace("\n", " ")


def _markdown(cell: Cell) -> str:
    text = plain_markdown(cell.text)
    return f"**{text}**" if cell.best else text
