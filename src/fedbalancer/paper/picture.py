"""Drawings of the items: small, the same bytes for the same numbers, and safe for names that look like formulas."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.report.style import DASHES, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 0.6
"""The share of the best accuracy of a task at which its panel begins."""
INK, FAINT = "#222222", "#666666"
DOTS_PER_INCH = 110
WIDTH, HEIGHT = 4.6, 3.3
ENTRY, LETTER, LINE = 0.6, 0.065, 0.17
"""Inches of a legend: of an entry without its text, of a letter, and of a line of entries."""


def panels(titles: Sequence[str], x_label: str, y_label: str, across: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each title."""
    from matplotlib.figure import Figure

    columns = min(across, max(1, len(titles)))
    rows = -(-max(1, len(titles)) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in grid[len(titles) :]:
        axes.set_axis_off()
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, parse_math=False)
        axes.set_xlabel(x_label, color=INK, parse_math=False)
        axes.set_ylabel(y_label, color=INK, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, grid[: len(titles)]


def legend_below(figure: Figure, across: int = 4) -> Figure:
    """One legend for all panels, as many names beside each other as fit."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update({label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries})
    if entries:
        fitting = int(figure.get_figwidth() / (ENTRY + LETTER * max(map(len, entries))))
        columns = max(1, min(across, len(entries), fitting))
        figure.set_figheight(figure.get_figheight() + LINE * (-(-len(entries) // columns) - 1))
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def accuracy_figure(curves: pl.DataFrame) -> Figure:
    """Accuracy over the budget, a panel for each task: the mean over seeds, in a band from lowest to highest. The
    beginning, where all methods are alike, is cut off, so that the ends can be told apart."""
    tasks = curves["task"].unique(maintain_order=True).to_list()
    figure, grid = panels(tasks, "Simulated time, share of the budget", "Test accuracy")
    look = looks(curves["method"].unique(maintain_order=True).to_list())
    for axes, task in zip(grid, tasks, strict=True):
        for (method,), line in curves.filter(pl.col("task") == task).group_by(["method"], maintain_order=True):
            drawn = look[str(method)]
            axes.plot(
                line["share"], line["accuracy"], label=method, color=drawn.colour, linestyle=DASHES[drawn.dash],
                linewidth=drawn.width * 0.7,
            )  # fmt: skip
            axes.fill_between(line["share"], line["low"], line["high"], color=drawn.colour, alpha=0.10, linewidth=0)
        axes.set_xlim(0, 1)
        best = float(curves.filter(pl.col("task") == task)["accuracy"].max() or 0.0)  # type: ignore[arg-type]
        axes.set_ylim(bottom=FLOOR * best)
    return legend_below(figure)


def png(figure: Figure) -> bytes:
    """The drawing as PNG, without the version of what drew it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The drawing as SVG, without a date, and with names inside that do not change from one drawing to the next. Text
    stays text, so that it can be searched and read aloud."""
    import matplotlib as mpl

    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedbalancer", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
