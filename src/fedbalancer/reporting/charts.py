"""The interactive charts of a report, as small specifications that `charts.js` draws.

All names in a specification are set as text, never interpreted as markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.core.types import FloatArray
from fedbalancer.reporting.comparison import Comparison, MethodScore
from fedbalancer.reporting.results import Results, StoredRun
from fedbalancer.reporting.series import PANELS, Band, Panel, accuracy_axes, clock_name, outcome_shares
from fedbalancer.reporting.style import GREY, ON_DARK, OUTCOMES, PHASES, Look, time_unit
from fedbalancer.reporting.tables import shows_interval, speedup_text
from fedbalancer.reporting.time_curve import SHARES, target_medians

DEVICE_CLASSES = ("slow", "mid", "fast")
MANY_ROWS = 12
RANKS = 100
"""Maximum number of clients in the chart of selections."""


@dataclass(frozen=True)
class Chart:
    """One chart of a page.

    Attributes:
        name: Name, unique on the page.
        title: Title.
        about: Caption, also read aloud.
        spec: What `charts.js` draws: a dictionary with the `kind` "lines" or "bars" (see `lines_spec`, `bars_spec`).
        wide: Whether the chart takes the full width.
    """

    name: str
    title: str
    about: str
    spec: dict[str, Any]
    wide: bool = False

    @property
    def choices(self) -> dict[str, str]:
        """The x axes to choose from, by key."""
        choices: dict[str, str] = self.spec.get("choices", {})
        return choices

    @property
    def empty(self) -> bool:
        return not (self.spec.get("series") or self.spec.get("rows"))


def encode_charts(charts: Sequence[Chart], looks: dict[str, Look]) -> str:
    """Encode charts as JSON for a script element.

    Args:
        charts: The charts.
        looks: Colour and line style by method.

    Returns:
        JSON in which no value can close the script element.
    """
    methods = [
        {"name": name, "colour": look.colour, "dark": look.dark, "dash": look.dash, "width": look.width}
        for name, look in looks.items()
    ]
    content = {"methods": methods, "charts": [{"name": chart.name, **chart.spec} for chart in charts]}
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def lines_spec(
    y: str, axes: dict[str, str], series: list[dict[str, Any]], marks: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Specify a line chart.

    Optional keys of the result: `points` draws dots without connecting lines, `floor` starts the y axis there.

    Args:
        y: Label of the y axis.
        axes: Labels of the x axes by key.
        series: The lines: index of the method (`m`), `label`, and for every axis (`on`) x, y and, over several seeds,
            low, high, n and tails.
        marks: Lines across the chart at an x or y, with a text.
    """
    return {"kind": "lines", "y": y, "axes": axes, "series": series, "marks": list(marks)}


def bars_spec(x: str, parts: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Specify a chart of horizontal bars.

    Optional keys of the result: `log` draws ratios on a log axis centred on 1, `marked` names the diamonds.

    Args:
        x: Label of the x axis.
        parts: The parts of a bar: a label and a colour (default: the colour of the method).
        rows: The bars: a label, the index of the method (`m`), a value per part and optionally `dots`, a `range`, a
            `text` after the bar and a `mark` (a diamond).
    """
    return {"kind": "bars", "x": x, "parts": parts, "rows": rows}


def line(m: int, label: str, band: Band, axis: str = "rounds") -> dict[str, Any]:
    """Return the line of method number `m` over one axis, for `lines_spec`."""
    return {"m": m, "label": label, "on": {axis: band_values(band)}}


def band_values(band: Band) -> dict[str, Any]:
    """Return the rounded values of a band, for `lines_spec`."""
    values: dict[str, Any] = {"x": numbers(band.x), "y": numbers(band.mean), "n": band.seeds}
    if np.any(band.low != band.high):
        values |= {"low": numbers(band.low), "high": numbers(band.high)}
    if band.tails:
        values["tails"] = [{"seed": t.seed, "x": numbers(t.x), "y": numbers(t.y)} for t in band.tails]
    return values


def part(label: str, colour: str) -> dict[str, Any]:
    """Return a part of stacked bars, for `bars_spec`."""
    return {"label": label, "colour": colour, "dark": ON_DARK.get(colour, colour)}


def numbers(values: FloatArray) -> list[float | None]:
    """Round values, see `number`."""
    return [number(value) for value in values.tolist()]


def number(value: float | None) -> float | None:
    """Round a value to the four digits that a screen shows, to keep the page small; None if it is not finite."""
    if value is None or not np.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def make_charts(results: Results, comparison: Comparison | None) -> list[Chart]:
    """Return all charts of a report that have values.

    Args:
        results: The runs.
        comparison: Their scores; None for a single run.
    """
    charts = [
        accuracy_chart(results, comparison),
        *([speedup_chart(results, comparison), targets_chart(results, comparison)] if comparison is not None else []),
        outcome_chart(results),
        time_chart(results),
        *(round_chart(results, panel) for panel in PANELS),
        losses_chart(results),
        seen_chart(results),
        selection_chart(results),
        class_chart(results),
    ]
    return [chart for chart in charts if not chart.empty]


def accuracy_chart(results: Results, comparison: Comparison | None) -> Chart:
    """Chart the metric over a selectable x axis, with the target and the budget of a comparison."""
    axes = accuracy_axes(results)
    series = [
        {"m": m, "label": method, "on": {a.key: band_values(band) for a in axes if (band := a.bands[method])}}
        for m, method in enumerate(results.methods)
    ]
    title = results.metric.title
    about = f"{results.metric.heading} on the test data." + seeds_text(results)
    if any(band and band.tails for axis in axes for band in axis.bands.values()):
        about += " Thin lines that end in a dot: single seeds beyond the shortest one, or not done."
    marks: list[dict[str, Any]] = []
    if comparison is not None and comparison.target is not None and comparison.budget_s is not None:
        per_unit = next((axis.per_unit for axis in axes if axis.key == "time"), 1.0)
        marks = [
            {"y": number(comparison.target), "text": f"target {comparison.target:.3f}"},
            {"axis": "share", "x": 1, "text": "budget"},
            {"axis": "time", "x": number(comparison.budget_s / per_unit), "text": "budget"},
        ]
        about += (
            f" Dotted: the target {title}. Dashed: the time budget; runs may continue beyond it to reach the target."
        )
    spec = lines_spec(f"test {title}", {axis.key: axis.label for axis in axes}, [s for s in series if s["on"]], marks)
    spec["choices"] = {axis.key: axis.choice for axis in axes}
    return Chart("accuracy", results.metric.heading, about, spec, wide=True)


def speedup_chart(results: Results, comparison: Comparison) -> Chart:
    """Chart the mean speed-up per method, with every seed as a dot."""
    place = {method: m for m, method in enumerate(results.methods)}
    rows = [
        {
            "m": place[method.method], "label": method.method, "parts": [number(method.speedup.mean)],
            "dots": [number(score.speedup) for score in method.scores], "text": _mean_text(method), **_interval(method),
        }
        for method in comparison.methods
        if method.scores
    ]  # fmt: skip
    spec = bars_spec("times as fast", [{"label": "mean"}], rows) | {"line": 1, "log": 1, "interval": "95% interval"}
    fair = comparison.rule == "fair"
    about = f"How many times as fast as {comparison.reference} the target was reached (log scale)."
    about += f" Bars: {'geometric mean' if fair else 'mean'}."
    if any("range" in row for row in rows):
        about += " Lines: 95% interval; an arrow means that it continues beyond the axis."
    bounds = " Dots: seeds; a seed that never reaches the target is drawn at its upper bound."
    about += bounds if fair else " Dots: seeds; a seed that never reaches the target is drawn at the left end."
    return Chart("speedup", "Speed-up to the target", about, spec)


def targets_chart(results: Results, comparison: Comparison) -> Chart:
    """Chart the median time to the targets."""
    medians = target_medians(results, comparison)
    per_unit, unit = time_unit(max((value for line in medians.values() for value in line if value), default=0.0))
    series = []
    for m, method in enumerate(results.methods):
        times = [None if value is None else number(value / per_unit) for value in medians.get(method, ())]
        if any(time is not None for time in times):
            series.append({"m": m, "label": method, "on": {"target": {"x": list(SHARES), "y": times, "n": 1}}})
    title = comparison.metric.title
    label = f"share of the reference's final {title}"
    spec = lines_spec(f"median time ({unit})", {"target": label}, series) | {"zero": 1, "from": SHARES[0]}
    about = (
        f"When each share of the final {title} of {comparison.reference} is reached, by the rule of this comparison:"
    )
    about += (
        f" {clock_name(results)}, median over seeds. A line ends where fewer than half of the runs reach the target."
    )
    return Chart("targets", f"Time to {title}", about, spec)


def outcome_chart(results: Results) -> Chart:
    """Chart how the rounds of selected clients ended."""
    shares = {method: outcome_shares(results.of(method)) for method in results.methods}
    present = {outcome for share in shares.values() for outcome in share}
    order = [outcome for outcome in OUTCOMES if outcome in present] + sorted(present - set(OUTCOMES))
    parts = [part(*OUTCOMES.get(outcome, (outcome, GREY))) for outcome in order]
    rows = [
        {"m": m, "label": method, "parts": [number(100 * shares[method].get(outcome, 0.0)) for outcome in order]}
        for m, method in enumerate(results.methods)
        if shares[method]
    ]
    about = "How the round ended for every selected client, over all rounds and seeds."
    spec = bars_spec("share of selected clients (%)", parts, rows) | {"most": 100}
    return Chart("outcomes", "Outcomes of selected clients", about, spec)


def round_chart(results: Results, panel: Panel) -> Chart:
    """Chart a column over rounds; the caption names the methods without values."""
    bands, width = panel.bands(results), panel.width(results)
    without = [method for method, band in bands.items() if band is None and results.of(method)]
    absent = f" Without a {panel.absent}: {', '.join(without)}." if panel.absent and without else ""
    means = "" if width == 1 else f" Points are means of {width} rounds."
    place = {method: m for m, method in enumerate(results.methods)}
    series = [line(place[method], method, band) for method, band in bands.items() if band]
    for column, name in panel.between:
        beside = panel.bands(results, column)
        series += [
            line(place[method], f"{method}: {name}", Band(band.x, band.mean, band.mean, band.mean, 1)) | {"thin": 1}
            for method, band in beside.items()
            if band and bands[method]
        ]
    about = panel.about + absent + means + seeds_text(results)
    spec = lines_spec(panel.axis, {"rounds": "round"}, series) | {"zero": 1, "whole": 1}
    return Chart(panel.name, panel.title, about, spec)


def losses_chart(results: Results) -> Chart:
    """Chart the losses that clients reported, by round."""
    about = (
        "Loss statistics that clients reported. Lines: mean loss. Bands: from the mean of the clients' lowest to the"
    )
    about += " mean of their highest loss. No client reports the loss of a single sample."
    columns = ("loss_low", "loss_mean", "loss_high")
    spec = lines_spec("loss", {"rounds": "round"}, _spreads(results, columns)) | {"zero": 1, "whole": 1}
    return Chart("losses", "Reported losses per round", about, spec)


def seen_chart(results: Results) -> Chart:
    """Chart the losses of the trained samples, and the threshold by which they were selected."""
    series = _spreads(results, ("seen_loss_p10", "seen_loss_p50", "seen_loss_p90"))
    thresholds = Panel("seen", "loss_threshold", "", "", "").bands(results)
    for drawn in list(series):
        band = thresholds[drawn["label"]]
        if band is not None and np.any(band.mean > 0):
            shown = Band(band.x, band.mean, band.mean, band.mean, 1)
            series.append(line(drawn["m"], f"{drawn['label']}: threshold", shown) | {"thin": 1})
    about = "Each sample's loss the first time it is trained in a round. Lines: median. Bands: 10th to 90th percentile."
    about += " Dashed: the loss threshold. Only the simulator records these losses; clients do not report them."
    spec = lines_spec("loss", {"rounds": "round"}, series) | {"zero": 1, "whole": 1}
    return Chart("seen", "Losses of the trained samples", about, spec)


def _spreads(results: Results, columns: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return a line with a band for every method, from three columns of its rounds: low, middle, high."""
    columns_bands = [Panel("", column, "", "", "").bands(results) for column in columns]
    series = []
    for m, method in enumerate(results.methods):
        low, middle, high = (bands[method] for bands in columns_bands)
        if middle is None or low is None or high is None or not len(low.x) == len(middle.x) == len(high.x):
            continue
        values = {name: numbers(band.mean) for name, band in (("y", middle), ("low", low), ("high", high))}
        on = {"rounds": {"x": numbers(middle.x), **values, "n": middle.seeds}}
        series.append({"m": m, "label": method, "spread": 1, "on": on})
    return series


def time_chart(results: Results) -> Chart:
    """Chart the mean seconds per phase of a round, by device class."""
    rows: list[dict[str, Any]] = []
    for m, method in enumerate(results.methods):
        for device, means in _mean_times(results.of(method)).items():
            label = f"{method} · {device}" if device else method
            rows.append({"m": m, "label": label, "parts": [number(means[name]) for name in PHASES]})
    parts = [part(*PHASES[name]) for name in PHASES]
    about = "Mean seconds of a selected device in a round, over all rounds and seeds, including late devices."
    if rows and not any(" · " in row["label"] for row in rows):
        about += " Device classes were not recorded."
    spec = bars_spec(f"seconds of {clock_name(results)}", parts, rows)
    return Chart("times", "Time per phase of a round", about, spec, wide=len(rows) > MANY_ROWS)


def selection_chart(results: Results) -> Chart:
    """Chart how often each client was selected, most selected first."""
    series = []
    for m, method in enumerate(results.methods):
        curves = [run.selections["times"].to_numpy() for run in results.of(method) if run.selections.height]
        if not curves:
            continue
        count = max(map(len, curves))
        values = np.stack([np.pad(curve, (0, count - len(curve))) for curve in curves]).astype(np.float64)
        kept = np.unique(np.linspace(0, count - 1, min(count, RANKS)).round().astype(int))
        band = Band(kept + 1.0, values.mean(0)[kept], values.min(0)[kept], values.max(0)[kept], len(curves))
        series.append(line(m, method, band, "rank"))
    about = "How often each client was selected, sorted by the number of selections." + seeds_text(results)
    if not any((run.selections["times"] == 0).any() or (run.selections["device"] != "").any() for run in results.runs):
        about += " Clients that were never selected may be missing, because the population was not recorded."
    spec = lines_spec("times selected", {"rank": "clients, most selected first"}, series) | {"zero": 1, "whole": 1}
    return Chart("selections", "Selections per client", about, spec)


def class_chart(results: Results) -> Chart:
    """Chart the share of trained samples by class."""
    series = []
    for m, method in enumerate(results.methods):
        tables = [run.classes for run in results.of(method) if run.classes.height]
        if not tables:
            continue
        classes = max(table.height for table in tables)
        shares = np.full((len(tables), classes), np.nan)  # a class without samples has no share
        for row, table in zip(shares, tables, strict=True):
            held, trained = table["held"].to_numpy(), table["trained"].to_numpy()
            np.divide(100.0 * trained, held, out=row[: len(held)], where=held > 0)
        known = np.flatnonzero(~np.isnan(shares).all(0))
        least, mean, most = (reduce(shares[:, known], 0) for reduce in (np.nanmin, np.nanmean, np.nanmax))
        series.append(line(m, method, Band(known.astype(np.float64), mean, least, most, len(tables)), "class"))
    about = (
        "Of the samples of each class that the training clients held, the share they trained on, within the budget."
        " A class that a method neglects shows here."
    )
    about += " Dots: mean over seeds. Lines: lowest to highest seed." if len(results.seeds) > 1 else ""
    spec = lines_spec("samples trained (%)", {"class": "class"}, series) | {"zero": 1, "whole": 1, "points": 1}
    return Chart("classes", "Trained samples per class", about, spec)


def seeds_text(results: Results) -> str:
    """Return the sentence of a caption about lines and bands; empty for a single seed."""
    return " Lines: mean over seeds. Bands: lowest to highest seed." if len(results.seeds) > 1 else ""


def _mean_times(runs: Sequence[StoredRun]) -> dict[str, dict[str, float]]:
    """Return the mean seconds per phase by device class, over the runs of a method."""
    counts: dict[str, float] = {}
    sums: dict[str, dict[str, float]] = {}
    for run in runs:
        for row in run.times.iter_rows(named=True):
            device = row["device"]
            counts[device] = counts.get(device, 0) + row["clients"]
            phases = sums.setdefault(device, dict.fromkeys(PHASES, 0.0))
            for name in PHASES:
                phases[name] += row["clients"] * (row[name] or 0.0)
    order = sorted(sums, key=lambda device: (DEVICE_CLASSES.index(device) if device in DEVICE_CLASSES else 9, device))
    return {device: {name: sums[device][name] / counts[device] for name in PHASES} for device in order}


def _mean_text(method: MethodScore) -> str:
    return speedup_text(method).partition(" (")[0].partition(" ±")[0]


def _interval(method: MethodScore) -> dict[str, Any]:
    low, high = method.speedup.low, method.speedup.high
    return (
        {}
        if high is None or not shows_interval(len(method.scores))
        else {"range": [number(max(low or 0.0, 0.0)), number(high)]}
    )
