"""The table of a comparison: for a text file, and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedbalancer.report.scores import Comparison, MethodScore, Spread
from fedbalancer.report.style import seconds, size_text

if TYPE_CHECKING:
    from rich.table import Table

HEADER = ("Method", "Speed-up", "Reached", "Final accuracy", "Sent down", "Sent up")


def markdown_table(comparison: Comparison) -> str:
    """The table as Markdown, the best of each column in bold, with what a reader must know above and below it."""
    rows = list(table_rows(comparison, lambda text: f"**{text}**", lambda text: text.replace("|", "\\|")))
    lines = [f"| {' | '.join(HEADER)} |", "|:--|--:|--:|--:|--:|--:|", *(f"| {' | '.join(row)} |" for row in rows)]
    caption = caption_lines(comparison)
    notes = [f"- {note}" for note in comparison.notes]
    return "\n\n".join(filter(None, [caption[0], "\n".join(lines), "\n".join(caption[1:]), "\n".join(notes)])) + "\n"


def rich_table(comparison: Comparison) -> Table:
    """The table for the terminal; the notes of the comparison are for the caller to print."""
    from rich.markup import escape
    from rich.table import Table

    caption = caption_lines(comparison)
    below = escape("\n".join(caption[1:]))
    table = Table(title=escape(caption[0]), caption=below, title_justify="left", caption_justify="left")
    for number, name in enumerate(HEADER):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for row in table_rows(comparison, lambda text: f"[bold]{text}[/bold]", escape):
        table.add_row(*row)
    return table


def table_rows(
    comparison: Comparison, bold: Callable[[str], str], escape: Callable[[str], str]
) -> Iterator[tuple[str, ...]]:
    """The cells of every method, in the order of the comparison."""
    for method in comparison.methods:
        speedup = spread_text(method.speedup, 2)
        accuracy = spread_text(method.accuracy, 3)
        yield (
            escape(method.method),
            bold(speedup) if is_best(comparison, method, _speedup) and method.reached else speedup,
            f"{method.reached}/{len(method.scores)}",
            bold(accuracy) if is_best(comparison, method, _accuracy) else accuracy,
            size_text(method.down_bytes.mean),
            size_text(method.up_bytes.mean),
        )


def caption_lines(comparison: Comparison) -> list[str]:
    """What was compared, against what, and how to read it."""
    name = f"{comparison.task or 'unnamed task'}{f' ({comparison.variant})' if comparison.variant else ''}"
    count = len(comparison.seeds)
    if comparison.target is None or comparison.budget_s is None:
        return [f"Task {name}: nothing scored yet.", reference_rule(comparison)]
    averaged = f", mean of {count} seeds" if count > 1 else ", one seed"
    rounds = f"{comparison.rounds} rounds" if comparison.rounds else "the task's rounds"
    seeds = ", ".join(str(seed.seed) for seed in comparison.seeds)
    stamp = "end" if comparison.stamp == "end" else "start (the authors' notebooks)"
    return [
        f"Task {name}: target accuracy {comparison.target:.3f}, budget {seconds(comparison.budget_s)}{averaged}.",
        reference_rule(comparison),
        f"Budget: the simulated clock of fedavg+1t after {rounds}; final accuracy: the last evaluation within it;",
        "sent: bytes to the clients and updates from them (late ones included) within it, mean over seeds.",
        f"Times are stamped with the {stamp} of the evaluated round; a target that was never reached counts as 0.",
        f"± is the sample standard deviation over seeds (ddof 1); seeds: {seeds}.",
    ]


def reference_rule(comparison: Comparison) -> str:
    """What the speed-ups are relative to."""
    if comparison.fedavg_reference:
        return "Target and speed-up of each seed: against the FedAvg variant with the best final accuracy on that seed."
    first = comparison.methods[0].method if comparison.methods else "the first method"
    return f"Target and speed-up of each seed: against {first}, the first method listed (no FedAvg variant took part)."


def spread_text(spread: Spread, digits: int) -> str:
    """Mean ± standard deviation, as far as they are defined."""
    if spread.mean is None:
        return "–"
    return f"{spread.mean:.{digits}f}" + ("" if spread.std is None else f" ± {spread.std:.{digits}f}")


def is_best(comparison: Comparison, method: MethodScore, value: Callable[[MethodScore], float | None]) -> bool:
    """Whether no method has a higher mean."""
    means = [mean for other in comparison.methods if (mean := value(other)) is not None]
    return bool(means) and value(method) == max(means)


def _speedup(method: MethodScore) -> float | None:
    return method.speedup.mean


def _accuracy(method: MethodScore) -> float | None:
    return method.accuracy.mean
