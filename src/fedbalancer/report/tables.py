"""The table of a comparison: for a text file, and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbalancer.report.estimate import Estimate
from fedbalancer.report.scores import Comparison, MethodScore
from fedbalancer.report.style import seconds, size_text

if TYPE_CHECKING:
    from rich.table import Table

HEADER = ("Method", "Speed-up", "Reached", "Final accuracy", "Sent down", "Sent up")


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and whether no method has a higher value there."""

    text: str
    best: bool = False


def markdown_table(comparison: Comparison) -> str:
    """The table as Markdown, the best of each column in bold, with what a reader must know above and below it."""
    rows = [[_markdown(cell) for cell in row] for row in table_rows(comparison)]
    lines = [f"| {' | '.join(HEADER)} |", "|:--|--:|--:|--:|--:|--:|", *(f"| {' | '.join(row)} |" for row in rows)]
    caption = caption_lines(comparison)
    notes = [f"- {note}" for note in comparison.notes]
    return "\n\n".join(filter(None, [caption[0], "\n".join(lines), "\n".join(caption[1:]), "\n".join(notes)])) + "\n"


def rich_table(comparison: Comparison) -> Table:
    """The table for the terminal; the notes of the comparison are for the caller to print."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    caption = caption_lines(comparison)
    below = escape("\n".join(caption[1:]))
    table = Table(title=escape(caption[0]), caption=below, title_justify="left", caption_justify="left")
    for number, name in enumerate(HEADER):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for row in table_rows(comparison):
        table.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    return table


def table_rows(comparison: Comparison) -> list[list[Cell]]:
    """The cells of every method, in the order of the comparison."""
    fastest = _highest(method.speedup.mean for method in comparison.methods if method.reached)
    best = _highest(method.accuracy.mean for method in comparison.methods)
    return [
        [
            Cell(method.method),
            Cell(speedup_text(method), method.reached > 0 and method.speedup.mean == fastest),
            Cell(f"{method.reached}/{len(method.scores)}"),
            Cell(estimate_text(method.accuracy, 3), method.accuracy.mean is not None and method.accuracy.mean == best),
            Cell(size_text(method.down_bytes.mean)),
            Cell(size_text(method.up_bytes.mean)),
        ]
        for method in comparison.methods
    ]


def caption_lines(comparison: Comparison) -> list[str]:
    """What was compared, against what, and how to read it."""
    name = f"{comparison.task or 'unnamed task'}{f' ({comparison.variant})' if comparison.variant else ''}"
    count = len(comparison.seeds)
    if comparison.target is None or comparison.budget_s is None:
        return [f"Task {name}: nothing scored yet.", reference_rule(comparison)]
    averaged = f", mean of {count} seeds" if count > 1 else ", one seed"
    rounds = f"{comparison.rounds} rounds" if comparison.rounds else "the task's rounds"
    seeds = ", ".join(str(seed.seed) for seed in comparison.seeds)
    start = comparison.stamp == "start"
    stamp = "start (the authors' notebooks)" if start else "end"
    clock = f"at the start of the last of {rounds}" if start else f"after {rounds}"
    return [
        f"Task {name}: target accuracy {comparison.target:.3f}, budget {seconds(comparison.budget_s)}{averaged}.",
        reference_rule(comparison),
        f"Budget: the simulated clock of fedavg+1t {clock}; final accuracy: the last evaluation within it;",
        "sent: bytes to the clients and updates from them (late ones included) within it, mean over seeds.",
        f"Times are stamped with the {stamp} of the evaluated round.",
        "A target that was never reached counts as 0 in the mean, and gives no interval: that 0 was not measured.",
        f"± is the sample standard deviation over seeds (ddof 1); seeds: {seeds}.",
    ]


def reference_rule(comparison: Comparison) -> str:
    """What the speed-ups are relative to."""
    if comparison.fedavg_reference:
        return "Target and speed-up of each seed: against the FedAvg variant with the best final accuracy on that seed."
    first = comparison.methods[0].method if comparison.methods else "the first method"
    return f"Target and speed-up of each seed: against {first}, the first method listed (no FedAvg variant took part)."


def speedup_text(method: MethodScore) -> str:
    """The speed-up, or in words that the target was never reached."""
    return "never" if method.scores and not method.reached else estimate_text(method.speedup, 2)


def estimate_text(estimate: Estimate, digits: int) -> str:
    """Mean ± standard deviation, as far as they are defined."""
    if estimate.mean is None:
        return "–"
    return f"{estimate.mean:.{digits}f}" + ("" if estimate.std is None else f" ± {estimate.std:.{digits}f}")


def _markdown(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    return f"**{text}**" if cell.best else text


def _highest(means: Iterable[float | None]) -> float | None:
    return max((mean for mean in means if mean is not None), default=None)
