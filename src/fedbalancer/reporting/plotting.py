"""Drawing with matplotlib: the common look of all figures, and their encoding as PNG and SVG.

This is the only module that uses matplotlib directly. It needs no display and no global state, and the same values give
the same bytes. All names are drawn as plain text, never as formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedbalancer.core.files import write_bytes
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.data.catalogue.summary import OTHER, LabelCounts
from fedbalancer.reporting.style import BLUE, DASHES, GREY, ORANGE, RED, SKY, choose_looks
from fedbalancer.simulation.devices import Fleet, estimate_network_s, sample_batch_s
from fedbalancer.simulation.devices.fleet_check import online_hours, sort_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 160
INK, FAINT, GRID = "#222222", "#666666", "#DDDDDD"
PANEL_WIDTH, PANEL_HEIGHT = 4.6, 3.3
LEGEND_ENTRY, LEGEND_LETTER, LEGEND_LINE = 0.6, 0.065, 0.17
"""Size of a legend in inches: an entry without its text, a character, and a line of entries."""
FLOOR = 0.6
"""Start of the y axis in `accuracy_panels`, as a share of the task's best accuracy."""
MOST_BARS, MOST_NAMES = 120, 32
"""Maximum number of clients in `plot_holdings`, and up to how many their names are shown."""
MOST_DEVICES, FLEET_DRAWS, MEGABYTE = 400, 10, 10**6
"""Maximum number of lines in `plot_fleet`, latencies that are averaged, and bytes by which networks are compared."""


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: Axes, x_label: str, y_label: str, title: str = "", title_size: int = 10) -> None:
    """Set labels and title of a panel and give it the common look: no frame at top and right, a light grid."""
    if title:
        axes.set_title(title, loc="left", fontsize=title_size, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(x_label, color=INK, parse_math=False)
    axes.set_ylabel(y_label, color=INK, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def image_bytes(figure: Figure, suffix: str, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """Encode a figure, without dates, versions and random names; the text of an SVG remains text.

    Args:
        figure: The figure.
        suffix: "png" or "svg".
        dots_per_inch: Resolution of a PNG.
    """
    from matplotlib import rc_context

    buffer = BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[suffix]
    if (layout := figure.get_layout_engine()) is not None:  # once for all formats: it takes longer than drawing
        layout.execute(figure)
        figure.set_layout_engine(None)
    with rc_context({"svg.hashsalt": "fedbalancer", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=suffix, dpi=dots_per_inch, metadata=metadata)
    return buffer.getvalue()


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure to a file; folders are created.

    Args:
        figure: The figure.
        path: The file: SVG if its suffix is .svg, otherwise PNG.

    Returns:
        The file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, image_bytes(figure, "svg" if path.suffix == ".svg" else "png"))
    return path


def make_panels(titles: Sequence[str], x_label: str, y_label: str, across: int = 3) -> tuple[Figure, list[Axes]]:
    """Create a figure with a panel per title.

    Args:
        titles: The titles.
        x_label: Label of all x axes.
        y_label: Label of all y axes.
        across: Maximum number of panels per row.
    """
    columns = min(across, max(1, len(titles)))
    rows = -(-max(1, len(titles)) // columns)
    figure = new_figure(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    for axes, title in zip(panels, titles, strict=False):
        style_axes(axes, x_label, y_label, title)
    return figure, panels[: len(titles)]


def add_legend(figure: Figure, across: int = 4) -> Figure:
    """Add one legend for all panels below a figure.

    Args:
        figure: The figure; its height grows with the legend.
        across: Maximum number of names per line.
    """
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update({label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries})
    if entries:
        fitting = int(figure.get_figwidth() / (LEGEND_ENTRY + LEGEND_LETTER * max(map(len, entries))))
        columns = max(1, min(across, len(entries), fitting))
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (-(-len(entries) // columns) - 1))
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def accuracy_panels(curves: pl.DataFrame) -> Figure:
    """Plot accuracy over the share of the budget, a panel per task: mean over seeds, band from lowest to highest.

    The y axis starts at 60% of the best accuracy, so that the ends of the lines can be distinguished.

    Args:
        curves: Rows with task, method, share, accuracy, low and high.
    """
    tasks = curves["task"].unique(maintain_order=True).to_list()
    figure, panels = make_panels(tasks, "Simulated time, share of the budget", "Test accuracy")
    looks = choose_looks(curves["method"].unique(maintain_order=True).to_list())
    for axes, task in zip(panels, tasks, strict=True):
        rows = curves.filter(pl.col("task") == task)
        for (method,), line in rows.group_by(["method"], maintain_order=True):
            look = looks[str(method)]
            axes.plot(
                line["share"], line["accuracy"], label=method, color=look.colour, linestyle=DASHES[look.dash],
                linewidth=look.width * 0.7,
            )  # fmt: skip
            axes.fill_between(line["share"], line["low"], line["high"], color=look.colour, alpha=0.10, linewidth=0)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=FLOOR * float(rows["accuracy"].max() or 0.0))  # type: ignore[arg-type]
    return add_legend(figure)


def plot_rates(title: str, panels: Mapping[str, Mapping[str, float]], strong: str, limit: str | None = None) -> Figure:
    """Plot rates as horizontal bars with their values, a panel per workload.

    Args:
        title: Title of the figure.
        panels: Rate by name, by workload.
        strong: Name of the bar to highlight.
        limit: Name of a bar to draw in grey.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    figure = new_figure(3.0 + 3.6 * columns, 0.7 + (0.5 + 0.34 * len(names)) * rows)
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    colours = [RED if name == strong else GREY if name == limit else SKY for name in names]
    for axes, (panel, bars) in zip(grid.flat, panels.items(), strict=False):
        values = [bars.get(name, 0.0) for name in names]
        drawn = axes.barh(names, values, color=colours)
        axes.bar_label(drawn, labels=[f"{value:,.0f}" if value else "" for value in values], padding=3, fontsize=8)
        axes.set_title(panel, fontsize=10)
        axes.set_xlim(right=1.25 * max([*values, 1e-9]))
        axes.spines[["top", "right"]].set_visible(False)
    grid.flat[0].invert_yaxis()
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return figure


def plot_latencies(rows: Sequence[tuple[str, FloatArray, FloatArray]], title: str) -> Figure:
    """Plot training and network seconds per phone as pairs of bars, with minimum and maximum as whiskers.

    Args:
        rows: Name, training seconds and network seconds of every phone, as minimum, mean and maximum.
        title: Title of the figure.
    """
    figure = new_figure(9.0, 4.2)
    axes = figure.subplots()
    places = np.arange(len(rows))
    for number, (name, colour) in enumerate((("training", BLUE), ("network", ORANGE))):
        low, mean, high = np.array([row[1 + number] for row in rows]).reshape(-1, 3).T
        axes.bar(
            places + 0.4 * (number - 0.5), mean, 0.4, color=colour, label=name, yerr=(mean - low, high - mean),
            error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 1.5},
        )  # fmt: skip
    axes.set_xticks(places, [row[0] for row in rows], rotation=60, ha="right", fontsize=8)
    axes.set(ylabel="Seconds per round", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def plot_holdings(held: LabelCounts) -> Figure:
    """Plot the labels of every client as stacked bars, and histograms of samples and labels per client.

    Args:
        held: The samples and labels of all clients.
    """
    figure = new_figure(11.0, 7.0)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    labels = f", {held.all_labels:,} labels" if held.labels else ""
    title = f"{held.title}: {len(held.clients):,} clients, {int(held.sizes.sum()):,} samples{labels}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK, parse_math=False)
    top = figure.add_subplot(grid[0, :])
    _draw_clients(top, held)
    _draw_histogram(figure.add_subplot(grid[1, 0]), held.sizes, "Samples per client")
    if held.labels:
        _draw_histogram(figure.add_subplot(grid[1, 1]), held.distinct, "Distinct labels per client")
        columns = 10 if len(held.labels) > 10 else len(held.labels)
        figure.legend(
            *top.get_legend_handles_labels(), title="Label", loc="outside lower center", ncols=columns,
            frameon=False, fontsize=8, title_fontsize=8,
        )  # fmt: skip
    return figure


def plot_fleet(fleet: Fleet, title: str) -> Figure:
    """Plot who is how fast and when online: speeds against networks, the share online, and every device's hours.

    Devices without their own seconds or network are drawn as in a run of femnist with seed 0.

    Args:
        fleet: A fleet that has devices.
        title: Title of the figure.
    """
    ids = tuple(device.id for device in fleet.devices)
    model = fleet.device_model(ids)
    batch_s = sample_batch_s(model, ids, FLEET_DRAWS).mean(axis=1)
    megabyte_s = estimate_network_s(model, ids, MEGABYTE, 0)
    hours = online_hours(fleet)
    figure = new_figure(11.0, 7.0)
    figure.suptitle(
        f"{title}: {len(ids):,} devices", x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK, parse_math=False
    )
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    speeds, shares, rows = (figure.add_subplot(place) for place in (grid[0, 0], grid[1, 0], grid[:, 1]))
    _draw_speeds(speeds, [device.device_class for device in fleet.devices], batch_s, 8 / megabyte_s)
    _draw_hours(shares, hours)
    _draw_devices(rows, hours[np.argsort(batch_s, kind="stable")])
    return figure


def _draw_speeds(axes: Axes, classes: Sequence[str], batch_s: FloatArray, mbit_s: FloatArray) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    names = tuple(sort_classes(classes))
    for name, colour in zip(names, _label_colours(names), strict=True):
        rows = np.array([each == name for each in classes])
        axes.scatter(batch_s[rows], mbit_s[rows], s=14, alpha=0.6, linewidths=0, color=colour, label=name or "no class")
    style_axes(axes, "Seconds per batch", "Download, Mbit/s", "Speed and network")
    for axis, values, scale in ((axes.xaxis, batch_s, axes.set_xscale), (axes.yaxis, mbit_s, axes.set_yscale)):
        scale("log")
        steps = (1.0, 2.0, 5.0) if values.max() < 100 * values.min() else (1.0,)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if len(names) > 1:
        legend = axes.legend(frameon=False, fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _draw_hours(axes: Axes, hours: FloatArray) -> None:
    axes.stairs(hours.mean(axis=0), np.arange(25), fill=True, color=BLUE, alpha=0.85)
    style_axes(axes, "Hour of the day", "Share online", "Devices online")
    axes.set(xlim=(0, 24), ylim=(0, 1), xticks=range(0, 25, 4))


def _draw_devices(axes: Axes, hours: FloatArray) -> None:
    """Draw a line per device, the fastest at the top; of many devices, some at equal distances."""
    rows = np.unique(np.linspace(0, len(hours) - 1, min(len(hours), MOST_DEVICES)).astype(np.int64))
    axes.imshow(hours[rows], aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=(0, 24, len(rows), 0))
    some = "" if len(rows) == len(hours) else f" ({len(rows)} of {len(hours):,})"
    style_axes(axes, "Hour of the day", f"Devices{some}, fastest at the top", "When each device is online")
    axes.grid(visible=False)
    axes.set(xticks=range(0, 25, 4), yticks=[])


LEARNED = (("batch_s", "std_s", "Seconds per batch"), ("down_mbit_s", "down_std_mbit_s", "Download, Mbit/s"),
           ("up_mbit_s", "up_std_mbit_s", "Upload, Mbit/s"))  # fmt: skip
"""Fitted means of a learned fleet, their deviations, and their labels."""
BAND = 1.645
"""Half the width of a 90% band, in standard deviations."""


def plot_learned_fleet(fleet: Fleet, clients: pl.DataFrame, title: str) -> Figure:
    """Plot what was measured against what was fitted: a panel per quantity, a column of points per device.

    Args:
        fleet: The learned fleet.
        clients: A row per client and round with the measured columns of `LEARNED`; null was not measured.
        title: Title of the figure.
    """
    figure = new_figure(11.0, 9.0)
    shown = f"{title}: {len(fleet.devices):,} learned devices; points: measured rounds, bars: fitted 90% bands"
    figure.suptitle(shown, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, parse_math=False)
    devices = sorted(fleet.devices, key=lambda device: (-(device.batch_s or 0.0), device.id))
    step = max(len(devices) // MOST_DEVICES, 1)
    place = {device.id: number for number, device in enumerate(devices[::step])}
    for axes, (name, deviation, label) in zip(figure.subplots(len(LEARNED), 1), LEARNED, strict=True):
        measured = clients.select("client", name).drop_nulls().filter(pl.col("client").is_in(list(place)))
        axes.scatter([place[client] for client in measured["client"]], measured[name], s=9, color=ORANGE, zorder=3,
                     alpha=0.7, linewidths=0, label="measured")  # fmt: skip
        fitted = [(place[each.id], getattr(each, name), getattr(each, deviation)) for each in devices[::step]
                  if getattr(each, name) is not None]  # fmt: skip
        if fitted:
            at, mean, std = np.array(fitted).T
            low = np.minimum(BAND * std, 0.99 * mean)
            axes.errorbar(at, mean, (low, BAND * std), fmt="_", color=BLUE, elinewidth=3, alpha=0.6, label="fitted")
            axes.set_yscale("log")
        some = "" if step == 1 else f" (every {step}th)"
        style_axes(axes, f"Devices{some}, slowest first", label)
        axes.set_xticks([])
    return add_legend(figure)


def _draw_clients(axes: Axes, held: LabelCounts) -> None:
    rows = held.space_clients(MOST_BARS)
    heights = held.counts[rows] if held.labels else held.sizes[rows][:, None]
    places, tops = np.arange(len(rows)), np.cumsum(heights, axis=1, dtype=np.float64)
    names, few = held.labels or ("samples",), len(rows) <= MOST_NAMES
    for column, (name, colour) in enumerate(zip(names, _label_colours(names), strict=True)):
        bottom = tops[:, column] - heights[:, column]
        if few:
            axes.bar(places, heights[:, column], bottom=bottom, width=0.9, color=colour, label=name)
        else:  # faster than thousands of single bars
            edges = np.arange(len(rows) + 1) - 0.5
            axes.stairs(tops[:, column], edges, baseline=bottom, fill=True, color=colour, label=name)
    some = "" if len(rows) == len(held.clients) else f" ({len(rows)} of {len(held.clients):,})"
    whole = not held.labels or int(held.counts.sum()) == int(held.sizes.sum())
    _style_bars(axes, f"Clients{some}, largest first", "Samples" if whole else "Labels in samples")
    axes.set_ylim(0, 1.05 * max(1.0, tops[:, -1].max()))
    if few:
        axes.set_xticks(places, [_shorten(held.clients[row]) for row in rows], rotation=45, ha="right", fontsize=8)
    else:
        axes.set_xticks([])


def _draw_histogram(axes: Axes, values: IndexArray, label: str) -> None:
    """Draw a histogram, on a log axis if the largest value is many times the smallest."""
    from matplotlib.ticker import MaxNLocator

    low, high = int(values.min()), int(values.max())
    edges: NDArray[Any] = np.linspace(low, high, 26)
    if high > 50 * max(low, 1) and low > 0:
        edges = np.unique(np.geomspace(low, high + 1, 25))
        axes.set_xscale("log")
    elif high - low < 30:
        edges = np.arange(low, high + 2) - 0.5
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(max(0, low - 2), high + 2)
    axes.hist(values, bins=edges.tolist(), color=BLUE, alpha=0.85, rwidth=0.95)
    _style_bars(axes, label, "Clients")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _style_bars(axes: Axes, x_label: str, y_label: str) -> None:
    style_axes(axes, x_label, y_label)
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)


def _label_colours(names: tuple[str, ...]) -> list[str]:
    """Return ten distinct colours, up to twenty in pairs of dark and light; near black for the combined rest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    return ["#333333" if name == OTHER else to_hex(palette(number % palette.N)) for number, name in enumerate(names)]


def _shorten(name: str) -> str:
    short = name if len(name) <= 18 else f"{name[:17]}…"
    return short.replace("$", r"\$")  # not a formula
