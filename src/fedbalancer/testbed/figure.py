"""The figure of latency by device (Figure 8 of the paper): how long every phone trained, and how long it was on the
network, round by round."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl

from fedbalancer.files import write_bytes
from fedbalancer.report.style import BLUE, ORANGE
from fedbalancer.types import FloatArray

DOTS_PER_INCH = 160
INK = "#222222"


def spread(values: pl.Series) -> FloatArray:
    """Least, mean and most."""
    numbers = values.to_numpy()
    return np.array([numbers.min(), numbers.mean(), numbers.max()])


def latencies(phones: pl.DataFrame) -> list[tuple[str, FloatArray, FloatArray]]:
    """Of every phone that took part: its name, its seconds of training and its seconds on the network (least, mean and
    most over the rounds), the slowest trainer first."""
    rows = [
        (str(client), spread(group["busy_s"]), spread(group["download_s"] + group["upload_s"]))
        for (client,), group in phones.group_by(["client"])
    ]
    return sorted(rows, key=lambda row: (-row[1][1], row[0]))


def write_figure(phones: pl.DataFrame, file: Path, title: str) -> Path:
    """Draw a pair of bars a phone, with the least and the most as whiskers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = latencies(phones)
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = np.arange(len(rows))
    for number, (name, colour) in enumerate((("training", BLUE), ("network", ORANGE))):
        low, mean, high = np.array([row[1 + number] for row in rows]).reshape(-1, 3).T
        axes.bar(
            places + 0.4 * (number - 0.5), mean, 0.4, color=colour, label=name, yerr=(mean - low, high - mean),
            error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 1.5},
        )  # fmt: skip
    axes.set_xticks(places, [row[0] for row in rows], rotation=60, ha="right", fontsize=8)
    axes.set(ylabel="Seconds of the phone in a round", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    write_bytes(file, buffer.getvalue())
    return file
