"""The figures of a comparison or a run as PNG and SVG. matplotlib draws without a display and without global state."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from fedbalancer.files import write_bytes
from fedbalancer.report.axes import accuracy_axes, clock_name
from fedbalancer.report.cells import shows_interval
from fedbalancer.report.estimate import Estimate
from fedbalancer.report.scores import Comparison
from fedbalancer.report.series import PANELS, Band, Panel
from fedbalancer.report.stored import Results
from fedbalancer.report.style import DASHES, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 160
INK, FAINT = "#222222", "#666666"
NOTHING = "nothing to show"
WIDEST = 2
"""So many times as far as the farthest seed does a line go: a wider one would squeeze all bars."""


def write_figures(results: Results, comparison: Comparison | None, folder: Path) -> tuple[Path, ...]:
    """Draw all figures into `folder`, each as PNG and SVG; a run alone has no speed-ups."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"accuracy": accuracy_figure(results, comparison)}
    drawn = [panel for panel in PANELS if panel.figure]
    figures |= {panel.column.removesuffix("_s"): round_figure(results, panel) for panel in drawn}
    if comparison is not None:
        figures["speedup"] = speedup_figure(results, comparison)
    paths = []
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            paths.append(folder / f"{name}.{suffix}")
            write_bytes(paths[-1], image_bytes(figure, suffix))
    return tuple(paths)


def accuracy_figure(results: Results, comparison: Comparison | None) -> Figure:
    """Accuracy over the share of the budget, by which seeds with unlike budgets end together, or else over time; with
    the target and the budget of a comparison."""
    axis = next(iter(accuracy_axes(results)), None)
    label = axis.label if axis is not None else clock_name(results)
    figure, axes = _figure(results, "Accuracy", label[0].upper() + label[1:], "Test accuracy")
    _draw(axes, results, axis.bands if axis is not None else dict.fromkeys(results.methods))
    if comparison is not None and comparison.target is not None:
        axes.axhline(comparison.target, color=FAINT, linestyle=(0, (1, 2)), linewidth=1.2, label="target")
    if axis is not None and axis.key == "share" and comparison is not None:
        axes.axvline(1.0, color=FAINT, linestyle=(0, (5, 3)), linewidth=1.0, label="budget")
    axes.set_xlim(left=0)
    return _finish(figure, axes)


def round_figure(results: Results, panel: Panel) -> Figure:
    """Lines over rounds, and below them the names of the methods that have none."""
    bands, width = panel.bands(results), panel.width(results)
    label = "Round" if width == 1 else f"Round (points are means of {width} rounds)"
    without = ", ".join(method for method, band in bands.items() if band is None)
    note = "\n" + textwrap.fill(f"No {panel.absent}: {without}", 95) if panel.absent and without else ""
    figure, axes = _figure(results, panel.title, label + note, panel.axis.capitalize())
    _draw(axes, results, bands)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    return _finish(figure, axes)


def speedup_figure(results: Results, comparison: Comparison) -> Figure:
    """Speed-up to the target as bars with a dot per seed and a line for how sure it is: by the fair rule the 95 %
    interval, from three seeds on and with an arrow where it goes far beyond all dots; by the paper's ± one standard
    deviation. A dot that is only a bound points the way."""
    look, fair = looks(results.methods), comparison.rule == "fair"
    middle, line = ("geometric mean", "95 % interval") if fair else ("mean", "± standard deviation")
    label = f"Times as fast as {comparison.reference} (bars: {middle}, lines: {line}, dots: seeds)"
    most = WIDEST * max(_points(comparison), default=1.0)
    figure, axes = _figure(results, "Speed-up to the target accuracy", label, "")
    for place, method in enumerate(comparison.methods):
        speedup, row = method.speedup, len(comparison.methods) - 1 - place
        if speedup.mean is None or not method.reached:
            text = "not scored" if speedup.mean is None else "never"
            axes.annotate(text, (0, row), (4, 0), textcoords="offset points", va="center", color=FAINT)
            continue
        axes.barh(row, speedup.mean, height=0.62, color=look[method.method].colour, alpha=0.85)
        low, end = _line(speedup, fair and shows_interval(len(method.scores)), fair)
        high = min(end, most)
        axes.plot([max(low, 0.0), high], [row, row], "|-", color=INK, linewidth=1.2)
        if end > most:
            axes.plot(most, row, ">", markersize=6, color=INK)
        for score in method.scores:
            marker = {"<": "<", ">": ">"}.get(score.bound, "o")
            axes.plot(score.speedup, row, marker, markersize=4, color="white", markeredgecolor=INK, clip_on=False)
        edge, bound = max([*(score.speedup for score in method.scores), high]), getattr(speedup, "bound", "")
        text = f"{bound} {speedup.mean:.2f}×".strip()
        axes.annotate(text, (edge, row), (7, 0), textcoords="offset points", va="center", color=INK)
    axes.set_yticks(range(len(comparison.methods)), [method.method for method in reversed(comparison.methods)])
    axes.axvline(1.0, color=FAINT, linestyle=(0, (5, 3)), linewidth=1.0)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    return figure


def _points(comparison: Comparison) -> list[float]:
    """All means and seeds that are drawn."""
    drawn = [method for method in comparison.methods if method.speedup.mean is not None and method.reached]
    return [value for m in drawn for value in (m.speedup.mean or 0.0, *(score.speedup for score in m.scores))]


def _line(speedup: Estimate, interval: bool, fair: bool) -> tuple[float, float]:
    """From where to where the line of a bar goes; a point where nothing is known."""
    mean = speedup.mean or 0.0
    if interval:
        return speedup.low if speedup.low is not None else mean, speedup.high if speedup.high is not None else mean
    return (mean, mean) if fair else (mean - (speedup.std or 0.0), mean + (speedup.std or 0.0))


def _figure(results: Results, title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    subject = f"{results.task} ({results.variant})" if results.variant else results.task
    axes.set_title(f"{title} · {subject}", loc="left", fontsize=12, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(x_label, color=INK, parse_math=False)
    axes.set_ylabel(y_label, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _draw(axes: Axes, results: Results, bands: dict[str, Band | None]) -> None:
    """One line per method, and a band where there are several seeds."""
    for method, look in looks(results.methods).items():
        band = bands[method]
        if band is None:
            continue
        x, marker = band.x, "o" if len(band.x) == 1 else ""
        axes.plot(
            x, band.mean, label=method, color=look.colour, linestyle=DASHES[look.dash],
            linewidth=look.width * 0.85, marker=marker,
        )  # fmt: skip
        if band.seeds > 1:
            axes.fill_between(x, band.low, band.high, color=look.colour, alpha=0.12, linewidth=0)
        for tail in band.tails:
            axes.plot(tail.x, tail.y, color=look.colour, linestyle=DASHES[look.dash], linewidth=0.7)
    if not axes.lines:
        axes.text(0.5, 0.5, NOTHING, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def _finish(figure: Figure, axes: Axes) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, fontsize=9
        )
    return figure


def image_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as PNG or SVG; without dates and random names in it, the same results give the same bytes."""
    from matplotlib import rc_context

    buffer = BytesIO()
    nothing = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    with rc_context({"svg.hashsalt": "fedbalancer", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=suffix, dpi=DOTS_PER_INCH, metadata=nothing)
    return buffer.getvalue()
