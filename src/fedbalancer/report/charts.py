"""The interactive charts of the page, as plain plotly figures (data and layout). Colours of text and grid are set in
the browser, so that they follow a light or dark page; the page's own legend switches methods on and off by `meta`."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from fedbalancer.report.folders import Results
from fedbalancer.report.scores import Comparison, MethodScore
from fedbalancer.report.series import PANELS, Band, Panel, accuracy_bands, outcome_shares
from fedbalancer.report.style import GREY, OUTCOMES, looks, time_unit
from fedbalancer.types import FloatArray


@dataclass(frozen=True)
class Chart:
    """One figure of the page: `about` is its caption, also read aloud."""

    name: str
    title: str
    about: str
    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False


def charts(results: Results, comparison: Comparison | None) -> list[Chart]:
    """All charts that there is something to show for."""
    made = [
        accuracy_chart(results, comparison),
        *([speedup_chart(results, comparison)] if comparison is not None else []),
        outcome_chart(results),
        *(round_chart(results, panel) for panel in PANELS),
    ]
    return [chart for chart in made if chart.data]


def accuracy_chart(results: Results, comparison: Comparison | None) -> Chart:
    """Accuracy over simulated time, with the target and the budget of a comparison."""
    bands = accuracy_bands(results)
    per_unit, unit = time_unit(max((float(band.x[-1]) for band in bands.values() if band), default=0.0))
    shapes, notes = _target_and_budget(comparison, per_unit)
    about = "Accuracy on the test data against the simulated clock." + _seeds_text(results)
    if shapes:
        about += " Dotted: the target accuracy. Dashed: the time budget; runs may go on beyond it to reach the target."
    hover = f"%{{x:.4~g}} {unit}<br>accuracy %{{y:.3f}}"
    layout = _axes(f"simulated time ({unit})", "test accuracy") | {"shapes": shapes, "annotations": notes}
    layout["xaxis"]["rangemode"], layout["yaxis"]["rangemode"] = "tozero", "normal"
    return Chart("accuracy", "Accuracy over time", about, _lines(results, bands, hover, per_unit), layout, wide=True)


def speedup_chart(results: Results, comparison: Comparison) -> Chart:
    """Mean speed-up per method, and every seed as a dot."""
    look = looks(results.methods)
    scored = [method for method in reversed(comparison.methods) if method.scores]
    names = [escape(method.method) for method in scored]
    bars: dict[str, Any] = {
        "type": "bar", "orientation": "h", "y": names, "x": [_number(method.speedup.mean) for method in scored],
        "marker": {"color": [look[method.method].colour for method in scored]}, "name": "mean",
        "hovertemplate": "%{y}: %{x:.2f}×<extra>mean</extra>",
    }  # fmt: skip
    dots = [(escape(s.method), s.speedup, s.seed) for method in scored for s in method.scores]
    seeds = {
        "type": "scatter", "mode": "markers", "y": [dot[0] for dot in dots], "x": [_number(dot[1]) for dot in dots],
        "marker": {"color": "#fff", "size": 7, "line": {"color": "#333", "width": 1.2}}, "name": "seeds",
        "customdata": [dot[2] for dot in dots], "hovertemplate": "%{y}, seed %{customdata}: %{x:.2f}×<extra></extra>",
    }  # fmt: skip
    numbers = [
        {"xref": "paper", "x": 1, "xanchor": "left", "y": name, "text": f"<b>{text}</b>", "showarrow": False}
        for name, text in zip(names, map(_factor, scored), strict=True)
    ]
    layout = _axes("times as fast", "") | {"shapes": [_line(x=1.0, dash="dash")], "annotations": numbers}
    layout["margin"] = {"r": 52}
    layout["xaxis"]["rangemode"] = "tozero"
    layout["yaxis"] |= {"type": "category", "showgrid": False, "rangemode": "normal"}
    about = f"How many times as fast as {comparison.reference} the target was reached."
    about += " Bars: mean. Dots: seeds, 0 where it never was."
    return Chart("speedup", "Speed-up to the target", about, [bars, seeds] if scored else [], layout)


def outcome_chart(results: Results) -> Chart:
    """How the rounds of the selected clients ended."""
    shares = {method: outcome_shares(results.of(method)) for method in reversed(results.methods)}
    shares = {method: share for method, share in shares.items() if share}
    present = {outcome for share in shares.values() for outcome in share}
    order = [outcome for outcome in OUTCOMES if outcome in present] + sorted(present - set(OUTCOMES))
    data = []
    for outcome in order:
        label, colour = OUTCOMES.get(outcome, (outcome, GREY))
        data.append({
            "type": "bar", "orientation": "h", "name": escape(label), "marker": {"color": colour},
            "y": [escape(method) for method in shares],
            "x": [_number(100 * share.get(outcome, 0.0)) for share in shares.values()],
            "hovertemplate": "%{y}: %{x:.1f} %<extra>" + escape(label) + "</extra>",
        })  # fmt: skip
    layout = _axes("share of selected clients (%)", "") | {"barmode": "stack", "showlegend": True}
    layout["bargap"] = 0.25 if len(shares) > 2 else 0.6
    place = {"x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
    layout["legend"] = {"orientation": "h", "traceorder": "normal", **place}
    layout["xaxis"] |= {"range": [0, 100]}
    layout["yaxis"] |= {"type": "category", "showgrid": False, "rangemode": "normal"}
    about = "How the round ended for every client that was selected, over all rounds and seeds."
    return Chart("outcomes", "What became of the selected clients", about, data, layout)


def round_chart(results: Results, panel: Panel) -> Chart:
    """A column over rounds; methods that have no line are named."""
    bands, width = panel.bands(results), panel.width(results)
    without = [method for method, band in bands.items() if band is None and results.of(method)]
    absent = f" Without a {panel.absent}: {', '.join(without)}." if panel.absent and without else ""
    means = "" if width == 1 else f" Points are means of {width} rounds."
    data = _lines(results, bands, f"round %{{x:.0f}}<br>{panel.axis} %{{y:.4~g}}")
    about = panel.about + absent + means + _seeds_text(results)
    return Chart(panel.name, panel.title, about, data, _axes("round", panel.axis))


def _factor(method: MethodScore) -> str:
    return f"{method.speedup.mean:.2f}×" if method.reached else "never"


def _lines(results: Results, bands: dict[str, Band | None], hover: str, per_x: float = 1.0) -> list[dict[str, Any]]:
    """Per method a line and, over several seeds, the band behind it."""
    data: list[dict[str, Any]] = []
    for method, look in looks(results.methods).items():
        band, common = bands[method], {"meta": method, "name": escape(method), "type": "scatter"}
        if band is None:
            continue
        x = _numbers(band.x / per_x)
        if band.seeds > 1:
            data.append(common | {
                "x": x + x[::-1], "y": _numbers(band.low) + _numbers(band.high)[::-1], "mode": "lines",
                "fill": "toself", "fillcolor": _faint(look.colour), "line": {"width": 0}, "hoverinfo": "skip",
            })  # fmt: skip
        line = {"color": look.colour, "dash": look.dash, "width": look.width}
        data.append(common | {
            "x": x, "y": _numbers(band.mean), "mode": "lines" if len(x) > 1 else "markers", "line": line,
            "hovertemplate": hover + "<extra>" + escape(method) + "</extra>",
        })  # fmt: skip
    return data


def _target_and_budget(
    comparison: Comparison | None, per_unit: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if comparison is None or comparison.target is None or comparison.budget_s is None:
        return [], []
    shapes = [_line(y=comparison.target, dash="dot"), _line(x=comparison.budget_s / per_unit, dash="dash")]
    place = {"showarrow": False, "font": {"size": 11}}
    target = {"xref": "paper", "x": 0, "y": comparison.target, "xanchor": "left", "yanchor": "bottom"}
    budget = {"yref": "paper", "x": comparison.budget_s / per_unit, "y": 0, "xanchor": "right", "yanchor": "bottom"}
    return shapes, [place | target | {"text": f"target {comparison.target:.3f}"}, place | budget | {"text": "budget "}]


def _line(dash: str, x: float | None = None, y: float | None = None) -> dict[str, Any]:
    """A line across the whole chart, at x or at y."""
    line = {"type": "line", "line": {"color": GREY, "width": 1.4, "dash": dash}, "layer": "below"}
    if x is not None:
        return line | {"x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
    return line | {"y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1}


def _axes(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}, "zeroline": False, "automargin": True},
        "yaxis": {"title": {"text": y}, "zeroline": False, "automargin": True, "rangemode": "tozero"},
        "showlegend": False,
    }


def _seeds_text(results: Results) -> str:
    return " Lines: mean over seeds. Bands: lowest to highest seed." if len(results.seeds) > 1 else ""


def _numbers(values: FloatArray) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float | None) -> float | None:
    """Six digits are more than a screen shows, and keep the page small."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
