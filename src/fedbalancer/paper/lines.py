"""Charts of lines for items that are not about methods: a chart for each task, a line for each seed or thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbalancer.paper.item import Charts
from fedbalancer.reporting.charts import Chart, lines_spec, numbers
from fedbalancer.reporting.style import choose_looks
from fedbalancer.types import FloatArray

Line = Mapping[str, FloatArray]
"""x and y, and low and high where there is a band."""


def lines_charts(
    panels: Mapping[str, Mapping[str, Line]], x: str, y: str, about: str,
    marks: Mapping[str, Sequence[dict[str, Any]]] | None = None, *, instead: bool = True,
) -> Charts:  # fmt: skip
    """A chart for every title of `panels`, with its lines by label; `marks` are lines across a chart."""
    place = {label: m for m, label in enumerate(dict.fromkeys(label for lines in panels.values() for label in lines))}
    drawn: list[Chart] = []
    for title, lines in panels.items():
        series = [{"m": place[label], "label": label, "on": {"x": _values(line)}} for label, line in lines.items()]
        spec = lines_spec(y, {"x": x}, series, (marks or {}).get(title, ())) | {"zero": 1}
        drawn.append(Chart(f"lines-{len(drawn)}", title, about, spec, wide=len(panels) == 1))
    return Charts(drawn, choose_looks(list(place)), instead)


def _values(line: Line) -> dict[str, Any]:
    return {name: numbers(values) for name, values in line.items()} | {"n": 2 if "low" in line else 1}
