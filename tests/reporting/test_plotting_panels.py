"""Drawings in which all that is written can be read."""

from __future__ import annotations

import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedbalancer.reporting.plotting import accuracy_panels

LONG = "fedbalancer[forward_pass=every,noise_factor=.5]"


@pytest.mark.parametrize("tasks", [["har"], ["har", "femnist"], ["har", "femnist", "celeba", "reddit"]])
@pytest.mark.parametrize("methods", [["canter"], ["fedavg+1t", "prox+1t", "fedbalancer", LONG, f"{LONG}+robust"]])
def test_the_legend_lies_within_the_drawing(tasks: list[str], methods: list[str]) -> None:
    curves = pl.DataFrame(
        {"task": task, "method": method, "share": share, "accuracy": 0.5, "low": 0.4, "high": 0.6}
        for task in tasks
        for method in methods
        for share in (0.0, 1.0)
    )
    figure = accuracy_panels(curves)
    FigureCanvasAgg(figure).draw()
    drawn, (legend,) = figure.bbox, figure.legends
    box = legend.get_window_extent()
    assert drawn.x0 <= box.x0 < box.x1 <= drawn.x1
    assert drawn.y0 <= box.y0 < box.y1 <= drawn.y1
    assert {text.get_text() for text in legend.get_texts()} == set(methods)
    assert all(axes.get_window_extent().height > drawn.height / (3 * len(tasks)) for axes in figure.axes[: len(tasks)])
