"""The figures of a comparison or a run: accuracy, columns over rounds, and speed-ups, as PNG and SVG."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.plotting import FAINT, INK, new_figure, style_axes, write_figure
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.results import Results
from fedbalancer.reporting.series import PANELS, Band, Panel, accuracy_axes, clock_name
from fedbalancer.reporting.style import DASHES, choose_looks
from fedbalancer.reporting.tables import shows_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 2
"""Maximum length of an interval's line, relative to the farthest seed; a longer one would shrink all bars."""


def write_figures(results: Results, comparison: Comparison | None, folder: Path) -> tuple[Path, ...]:
    """Write all figures as PNG and SVG.

    Args:
        results: The runs.
        comparison: Their scores; None for a single run, which has no figure of speed-ups.
        folder: Where to write them.

    Returns:
        The files.
    """
    figures = {"accuracy": accuracy_figure(results, comparison)}
    drawn = [panel for panel in PANELS if panel.figure]
    figures |= {panel.column.removesuffix("_s"): round_figure(results, panel) for panel in drawn}
    if comparison is not None:
        figures["speedup"] = speedup_figure(results, comparison)
    return tuple(
        write_figure(figure, folder / f"{name}.{suffix}")
        for name, figure in figures.items()
        for suffix in ("png", "svg")
    )


def accuracy_figure(results: Results, comparison: Comparison | None) -> Figure:
    """Plot the metric over the share of the budget or, without a budget, over time; with target and budget."""
    axis = next(iter(accuracy_axes(results)), None)
    label = axis.label if axis is not None else clock_name(results)
    metric = results.metric
    figure, axes = _new_figure(results, metric.heading, label[0].upper() + label[1:], f"Test {metric.title}")
    _draw(axes, results, axis.bands if axis is not None else dict.fromkeys(results.methods))
    if comparison is not None and comparison.target is not None:
        axes.axhline(comparison.target, color=FAINT, linestyle=(0, (1, 2)), linewidth=1.2, label="target")
    if axis is not None and axis.key == "share" and comparison is not None:
        axes.axvline(1.0, color=FAINT, linestyle=(0, (5, 3)), linewidth=1.0, label="budget")
    axes.set_xlim(left=0)
    return _add_legend(figure, axes)


def round_figure(results: Results, panel: Panel) -> Figure:
    """Plot a column over rounds; the x label names the methods without values."""
    bands, width = panel.bands(results), panel.width(results)
    label = "Round" if width == 1 else f"Round (points are means of {width} rounds)"
    without = ", ".join(method for method, band in bands.items() if band is None)
    note = "\n" + textwrap.fill(f"No {panel.absent}: {without}", 95) if panel.absent and without else ""
    figure, axes = _new_figure(results, panel.title, label + note, panel.axis.capitalize())
    _draw(axes, results, bands)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    return _add_legend(figure, axes)


def speedup_figure(results: Results, comparison: Comparison) -> Figure:
    """Plot the speed-up per method as a bar with a dot per seed and a line for the uncertainty.

    By the fair rule the line is the 95% interval, from three seeds on, with an arrow if it is cut off; by the paper's
    rule it is ± one standard deviation. A seed that is only a bound is drawn as a triangle in its direction.
    """
    looks, fair = choose_looks(results.methods), comparison.rule == "fair"
    middle, line = ("geometric mean", "95% interval") if fair else ("mean", "± standard deviation")
    label = f"Times as fast as {comparison.reference} (bars: {middle}, lines: {line}, dots: seeds)"
    most = WIDEST * max(_drawn_values(comparison), default=1.0)
    figure, axes = _new_figure(results, f"Speed-up to the target {results.metric.title}", label, "")
    for place, method in enumerate(comparison.methods):
        speedup, row = method.speedup, len(comparison.methods) - 1 - place
        if speedup.mean is None or not method.reached:
            text = "not scored" if speedup.mean is None else "never"
            axes.annotate(text, (0, row), (4, 0), textcoords="offset points", va="center", color=FAINT)
            continue
        axes.barh(row, speedup.mean, height=0.62, color=looks[method.method].colour, alpha=0.85)
        low, end = _line_ends(speedup, fair and shows_interval(len(method.scores)), fair)
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


def _drawn_values(comparison: Comparison) -> list[float]:
    drawn = [method for method in comparison.methods if method.speedup.mean is not None and method.reached]
    return [value for m in drawn for value in (m.speedup.mean or 0.0, *(score.speedup for score in m.scores))]


def _line_ends(speedup: Estimate, interval: bool, fair: bool) -> tuple[float, float]:
    """Return the ends of a bar's line; both are the mean if nothing is known."""
    mean = speedup.mean or 0.0
    if interval:
        return speedup.low if speedup.low is not None else mean, speedup.high if speedup.high is not None else mean
    return (mean, mean) if fair else (mean - (speedup.std or 0.0), mean + (speedup.std or 0.0))


def _new_figure(results: Results, title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = new_figure(8.0, 4.8)
    axes = figure.add_subplot()
    subject = f"{results.task} ({results.variant})" if results.variant else results.task
    style_axes(axes, x_label, y_label, f"{title} · {subject}", title_size=12)
    return figure, axes


def _draw(axes: Axes, results: Results, bands: dict[str, Band | None]) -> None:
    """Draw a line per method, with a band if there are several seeds."""
    for method, look in choose_looks(results.methods).items():
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
        axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center", va="center", color=FAINT)


def _add_legend(figure: Figure, axes: Axes) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, fontsize=9
        )
    return figure
