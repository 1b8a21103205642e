"""A picture of who has what. matplotlib draws without a display and without global state."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.datasets.holdings import OTHER, Holdings
from fedbalancer.files import write_bytes
from fedbalancer.types import IndexArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150
MOST_BARS = 120
MOST_NAMES = 32
INK, PLAIN, OTHERS = "#222222", "#0072B2", "#333333"


def write_picture(held: Holdings, path: Path) -> None:
    """Draw the picture as a PNG."""
    buffer = BytesIO()
    # without the version of the library in it, the same data gives the same bytes
    picture(held).savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, buffer.getvalue())


def picture(held: Holdings) -> Figure:
    """The labels of every client as stacked bars, and how sizes and numbers of labels are spread over clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 7.0), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    figure.suptitle(_title(held), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK, parse_math=False)
    top = figure.add_subplot(grid[0, :])
    _bars(top, held)
    _spread(figure.add_subplot(grid[1, 0]), held.sizes, "Samples of a client")
    if held.labels:
        _spread(figure.add_subplot(grid[1, 1]), held.distinct, "Different labels of a client")
        columns = 10 if len(held.labels) > 10 else len(held.labels)
        figure.legend(
            *top.get_legend_handles_labels(), title="Label", loc="outside lower center", ncols=columns,
            frameon=False, fontsize=8, title_fontsize=8,
        )  # fmt: skip
    return figure


def _title(held: Holdings) -> str:
    labels = f", {held.all_labels:,} labels" if held.labels else ""
    return f"{held.title}: {len(held.clients):,} clients, {int(held.sizes.sum()):,} samples{labels}"


def _bars(axes: Axes, held: Holdings) -> None:
    rows = held.spaced(MOST_BARS)
    heights = held.counts[rows] if held.labels else held.sizes[rows][:, None]
    places, tops = np.arange(len(rows)), np.cumsum(heights, axis=1, dtype=np.float64)
    names, few = held.labels or ("samples",), len(rows) <= MOST_NAMES
    for column, (name, colour) in enumerate(zip(names, _colours(names), strict=True)):
        bottom = tops[:, column] - heights[:, column]
        if few:
            axes.bar(places, heights[:, column], bottom=bottom, width=0.9, color=colour, label=name)
        else:  # thousands of single bars take seconds
            edges = np.arange(len(rows) + 1) - 0.5
            axes.stairs(tops[:, column], edges, baseline=bottom, fill=True, color=colour, label=name)
    axes.set_ylim(0, 1.05 * max(1.0, tops[:, -1].max()))
    if few:
        axes.set_xticks(places, [_short(held.clients[row]) for row in rows], rotation=45, ha="right", fontsize=8)
    else:
        axes.set_xticks([])
    some = "" if len(rows) == len(held.clients) else f" ({len(rows)} of {len(held.clients):,})"
    whole = not held.labels or int(held.counts.sum()) == int(held.sizes.sum())
    _dress(axes, f"Clients{some}, the largest first", "Samples" if whole else "Labels in samples")


def _spread(axes: Axes, values: IndexArray, label: str) -> None:
    """A histogram; on a logarithmic axis where the largest is many times the smallest."""
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
    axes.hist(values, bins=edges.tolist(), color=PLAIN, alpha=0.85, rwidth=0.95)
    _dress(axes, label, "Clients")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def _colours(names: tuple[str, ...]) -> list[str]:
    """Ten clearly different colours; up to twenty in pairs of dark and light; near black for what is put together."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    return [OTHERS if name == OTHER else to_hex(palette(number % palette.N)) for number, name in enumerate(names)]


def _short(name: str) -> str:
    shown = name if len(name) <= 18 else f"{name[:17]}…"
    return shown.replace("$", r"\$")  # not mathematics
