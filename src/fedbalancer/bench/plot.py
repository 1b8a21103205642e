"""Bars of rates, one panel a workload, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from fedbalancer.files import write_bytes
from fedbalancer.report.style import GREY, RED, SKY

DOTS_PER_INCH = 160
COLUMNS = 3


def write_bars(
    path: Path, title: str, panels: Mapping[str, Mapping[str, float]], strong: str, limit: str | None = None
) -> None:
    """Horizontal bars with their values; the bar named `strong` stands out, the one named `limit` is grey."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    figure = Figure(figsize=(3.0 + 3.6 * columns, 0.7 + (0.5 + 0.34 * len(names)) * rows), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    colours = [RED if name == strong else GREY if name == limit else SKY for name in names]
    for place, (panel, bars) in zip(axes.flat, panels.items(), strict=False):
        values = [bars.get(name, 0.0) for name in names]
        drawn = place.barh(names, values, color=colours)
        place.bar_label(drawn, labels=[f"{value:,.0f}" if value else "" for value in values], padding=3, fontsize=8)
        place.set_title(panel, fontsize=10)
        place.set_xlim(right=1.25 * max([*values, 1e-9]))
        place.invert_yaxis() if place is axes.flat[0] else None
        place.spines[["top", "right"]].set_visible(False)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    data = BytesIO()
    figure.savefig(data, format="png", dpi=DOTS_PER_INCH)
    write_bytes(path, data.getvalue())
