"""What an interactive chart is: a small specification that `charts.js` draws, for any page of ours. Names stay text all
the way: what is in a specification is set as text, never read as markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.report.series import Band
from fedbalancer.report.style import ON_DARK, Look
from fedbalancer.types import FloatArray


@dataclass(frozen=True)
class Chart:
    """One chart of a page: `about` is its caption, also read aloud; `spec` is what `charts.js` draws, a dictionary with
    the `kind` lines or bars (see `lines_spec` and `bars_spec`)."""

    name: str
    title: str
    about: str
    spec: dict[str, Any]
    wide: bool = False

    @property
    def choices(self) -> dict[str, str]:
        """What the x axis can be switched to, by key."""
        found: dict[str, str] = self.spec.get("choices", {})
        return found

    @property
    def empty(self) -> bool:
        return not (self.spec.get("series") or self.spec.get("rows"))


def data_of(charts: Sequence[Chart], look: dict[str, Look]) -> str:
    """All that `charts.js` is given, as JSON that can stand in a script element: no value can end it."""
    methods = [
        {"name": name, "colour": has.colour, "dark": has.dark, "dash": has.dash, "width": has.width}
        for name, has in look.items()
    ]
    content = {"methods": methods, "charts": [{"name": chart.name, **chart.spec} for chart in charts]}
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def lines_spec(
    y: str, axes: dict[str, str], series: list[dict[str, Any]], marks: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Lines: `axes` are the labels of the x that they can be drawn over, `series` have the number of their method `m`,
    a `label`, and `on`: for every axis x, y and, over several seeds, low, high, n and tails. `marks` are lines across
    the chart at an x or y, with a text. With `points` every x is a thing of its own: dots, and no line between them.
    With a `floor` the y axis begins there, and what is below it is cut off."""
    return {"kind": "lines", "y": y, "axes": axes, "series": series, "marks": list(marks)}


def bars_spec(x: str, parts: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Horizontal bars: `rows` have a label, the number of their method `m` (by which they are hidden) and a value for
    each of the `parts`, which have a label and, unless it is the method's, a colour; and may have `dots`, a `range`, a
    `text` behind the bar and a `mark`, a diamond that the specification's `marked` names. With `log` they are ratios,
    on an axis on which 1 is the middle."""
    return {"kind": "bars", "x": x, "parts": parts, "rows": rows}


def line(m: int, label: str, band: Band, axis: str = "rounds") -> dict[str, Any]:
    """The line of method number `m` over one x, for `lines_spec`."""
    return {"m": m, "label": label, "on": {axis: band_values(band)}}


def band_values(band: Band) -> dict[str, Any]:
    """A band in short numbers."""
    values: dict[str, Any] = {"x": numbers(band.x), "y": numbers(band.mean), "n": band.seeds}
    if np.any(band.low != band.high):
        values |= {"low": numbers(band.low), "high": numbers(band.high)}
    if band.tails:
        values["tails"] = [{"seed": t.seed, "x": numbers(t.x), "y": numbers(t.y)} for t in band.tails]
    return values


def part(label: str, colour: str) -> dict[str, Any]:
    """A part of stacked bars, for `bars_spec`."""
    return {"label": label, "colour": colour, "dark": ON_DARK.get(colour, colour)}


def numbers(values: FloatArray) -> list[float | None]:
    """Many of `number`."""
    return [number(value) for value in values.tolist()]


def number(value: float | None) -> float | None:
    """Four digits are what a screen shows, and keep the page small."""
    if value is None or not np.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short
