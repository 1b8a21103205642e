"""The charts of a report: what came of the runs, and what went on in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbalancer.report.axes import accuracy_axes, clock_name
from fedbalancer.report.cells import shows_interval, speedup_text
from fedbalancer.report.charts import Chart, band_values, bars_spec, line, lines_spec, number, numbers, part
from fedbalancer.report.scores import Comparison, MethodScore
from fedbalancer.report.series import PANELS, Band, Panel, outcome_shares
from fedbalancer.report.stored import Results, StoredRun
from fedbalancer.report.style import GREY, OUTCOMES, PHASES, time_unit
from fedbalancer.report.targets import SHARES, target_medians

CLASSES = ("slow", "mid", "fast")
MANY_ROWS = 12
RANKS = 100
"""At most so many clients are drawn in the order of their selections."""


def charts(results: Results, comparison: Comparison | None) -> list[Chart]:
    """All charts that there is something to show for."""
    made = [
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
    return [chart for chart in made if not chart.empty]


def accuracy_chart(results: Results, comparison: Comparison | None) -> Chart:
    """Accuracy over an x of the reader's choice, with the target and the budget of a comparison."""
    axes = accuracy_axes(results)
    series = [
        {"m": m, "label": method, "on": {a.key: band_values(band) for a in axes if (band := a.bands[method])}}
        for m, method in enumerate(results.methods)
    ]
    about = "Accuracy on the test data." + seeds_text(results)
    if any(band and band.tails for axis in axes for band in axis.bands.values()):
        about += " Thin, ending in a dot: single seeds that go on beyond the shortest, or are not done."
    marks: list[dict[str, Any]] = []
    if comparison is not None and comparison.target is not None and comparison.budget_s is not None:
        per_unit = next((axis.per_unit for axis in axes if axis.key == "time"), 1.0)
        marks = [
            {"y": number(comparison.target), "text": f"target {comparison.target:.3f}"},
            {"axis": "share", "x": 1, "text": "budget"},
            {"axis": "time", "x": number(comparison.budget_s / per_unit), "text": "budget"},
        ]
        about += " Dotted: the target accuracy. Dashed: the time budget; runs may go on beyond it to reach the target."
    spec = lines_spec("test accuracy", {axis.key: axis.label for axis in axes}, [s for s in series if s["on"]], marks)
    spec["choices"] = {axis.key: axis.choice for axis in axes}
    return Chart("accuracy", "Accuracy", about, spec, wide=True)


def speedup_chart(results: Results, comparison: Comparison) -> Chart:
    """Mean speed-up per method, and every seed as a dot."""
    place = {method: m for m, method in enumerate(results.methods)}
    rows = [
        {
            "m": place[method.method], "label": method.method, "parts": [number(method.speedup.mean)],
            "dots": [number(score.speedup) for score in method.scores], "text": _factor(method), **_interval(method),
        }
        for method in comparison.methods
        if method.scores
    ]  # fmt: skip
    spec = bars_spec("times as fast", [{"label": "mean"}], rows) | {"line": 1, "log": 1, "interval": "95% interval"}
    fair = comparison.rule == "fair"
    about = f"How many times as fast as {comparison.reference} the target was reached, on a scale of ratios."
    about += f" Bars, from 1 to the stroke: {'geometric mean' if fair else 'mean'}."
    if any("range" in row for row in rows):
        about += " Lines: 95% interval, with an arrow where it goes on beyond the axis."
    known = " Dots: seeds; one that never came there stands where it could at most be."
    about += known if fair else " Dots: seeds, at the left end where it never was."
    return Chart("speedup", "Speed-up to the target", about, spec)


def targets_chart(results: Results, comparison: Comparison) -> Chart:
    """Time to accuracy as a curve over targets, not at one number."""
    medians = target_medians(results, comparison)
    per_unit, unit = time_unit(max((value for line in medians.values() for value in line if value), default=0.0))
    series = []
    for m, method in enumerate(results.methods):
        times = [None if value is None else number(value / per_unit) for value in medians.get(method, ())]
        if any(time is not None for time in times):
            series.append({"m": m, "label": method, "on": {"target": {"x": list(SHARES), "y": times, "n": 1}}})
    label = "share of the reference's final accuracy"
    spec = lines_spec(f"median time ({unit})", {"target": label}, series) | {"zero": 1, "from": SHARES[0]}
    about = (
        f"When each share of the final accuracy of {comparison.reference} was reached, by the rule of this comparison:"
    )
    about += f" {clock_name(results)}, median over seeds. A line ends where half of the runs never came to."
    return Chart("targets", "Time to accuracy", about, spec)


def outcome_chart(results: Results) -> Chart:
    """How the rounds of the selected clients ended."""
    shares = {method: outcome_shares(results.of(method)) for method in results.methods}
    present = {outcome for share in shares.values() for outcome in share}
    order = [outcome for outcome in OUTCOMES if outcome in present] + sorted(present - set(OUTCOMES))
    parts = [part(*OUTCOMES.get(outcome, (outcome, GREY))) for outcome in order]
    rows = [
        {"m": m, "label": method, "parts": [number(100 * shares[method].get(outcome, 0.0)) for outcome in order]}
        for m, method in enumerate(results.methods)
        if shares[method]
    ]
    about = "How the round ended for every client that was selected, over all rounds and seeds."
    spec = bars_spec("share of selected clients (%)", parts, rows) | {"most": 100}
    return Chart("outcomes", "What became of the selected clients", about, spec)


def round_chart(results: Results, panel: Panel) -> Chart:
    """A column over rounds; methods that have no line are named."""
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
    """The losses that clients released, round by round."""
    about = (
        "What clients released of their samples' losses. Lines: mean loss. Bands: from the mean of the lowest to the"
    )
    about += " mean of the highest loss that each released; no single sample's loss leaves a client."
    columns = ("loss_low", "loss_mean", "loss_high")
    spec = lines_spec("loss", {"rounds": "round"}, _spreads(results, columns)) | {"zero": 1, "whole": 1}
    return Chart("losses", "Losses over time", about, spec)


def seen_chart(results: Results) -> Chart:
    """With which losses samples were trained on, and the threshold that they were selected by."""
    series = _spreads(results, ("seen_loss_p10", "seen_loss_p50", "seen_loss_p90"))
    thresholds = Panel("seen", "loss_threshold", "", "", "").bands(results)
    for drawn in list(series):
        band = thresholds[drawn["label"]]
        if band is not None and np.any(band.mean > 0):
            shown = Band(band.x, band.mean, band.mean, band.mean, 1)
            series.append(line(drawn["m"], f"{drawn['label']}: threshold", shown) | {"thin": 1})
    about = "The losses with which samples were met in training. Lines: their median. Bands: from the tenth to the"
    about += " ninetieth of a hundred. Dashed: the loss threshold. Only a simulator knows them: no client tells."
    spec = lines_spec("loss", {"rounds": "round"}, series) | {"zero": 1, "whole": 1}
    return Chart("seen", "Losses of what was trained on", about, spec)


def _spreads(results: Results, columns: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Of every method a line with a band around it, from three columns of its rounds: low, middle, high."""
    found = [Panel("", column, "", "", "").bands(results) for column in columns]
    series = []
    for m, method in enumerate(results.methods):
        low, middle, high = (bands[method] for bands in found)
        if middle is None or low is None or high is None or not len(low.x) == len(middle.x) == len(high.x):
            continue
        values = {name: numbers(band.mean) for name, band in (("y", middle), ("low", low), ("high", high))}
        on = {"rounds": {"x": numbers(middle.x), **values, "n": middle.seeds}}
        series.append({"m": m, "label": method, "spread": 1, "on": on})
    return series


def time_chart(results: Results) -> Chart:
    """Where the seconds of a round go, by class of device."""
    rows: list[dict[str, Any]] = []
    for m, method in enumerate(results.methods):
        for device, means in _times(results.of(method)).items():
            label = f"{method} · {device}" if device else method
            rows.append({"m": m, "label": label, "parts": [number(means[name]) for name in PHASES]})
    parts = [part(*PHASES[name]) for name in PHASES]
    about = (
        "Mean seconds of a round for a selected device, over all rounds and seeds, those that came too late included."
    )
    if rows and not any(" · " in row["label"] for row in rows):
        about += " The classes of the devices were not recorded."
    spec = bars_spec(f"seconds of {clock_name(results)}", parts, rows)
    return Chart("times", "Where the time of a round goes", about, spec, wide=len(rows) > MANY_ROWS)


def selection_chart(results: Results) -> Chart:
    """How often each client was selected, from the most to the least often."""
    series = []
    for m, method in enumerate(results.methods):
        curves = [run.selections["times"].to_numpy() for run in results.of(method) if run.selections.height]
        if not curves:
            continue
        count = max(map(len, curves))
        values = np.stack([np.pad(each, (0, count - len(each))) for each in curves]).astype(np.float64)
        kept = np.unique(np.linspace(0, count - 1, min(count, RANKS)).round().astype(int))
        band = Band(kept + 1.0, values.mean(0)[kept], values.min(0)[kept], values.max(0)[kept], len(curves))
        series.append(line(m, method, band, "rank"))
    about = "How often a client was selected, from the one selected most to the one selected least." + seeds_text(
        results
    )
    if not any((run.selections["times"] == 0).any() or (run.selections["device"] != "").any() for run in results.runs):
        about += " Clients that were never selected may be missing: the population was not recorded."
    spec = lines_spec("times selected", {"rank": "clients, most selected first"}, series) | {"zero": 1, "whole": 1}
    return Chart("selections", "Who was selected how often", about, spec)


def class_chart(results: Results) -> Chart:
    """Of the samples of each class, how many were trained."""
    series = []
    for m, method in enumerate(results.methods):
        found = [run.classes for run in results.of(method) if run.classes.height]
        if not found:
            continue
        classes = max(each.height for each in found)
        shares = np.full((len(found), classes), np.nan)  # a class that nobody held yet has no share
        for row, each in zip(shares, found, strict=True):
            held, trained = each["held"].to_numpy(), each["trained"].to_numpy()
            np.divide(100.0 * trained, held, out=row[: len(held)], where=held > 0)
        known = np.flatnonzero(~np.isnan(shares).all(0))
        least, mean, most = (of(shares[:, known], 0) for of in (np.nanmin, np.nanmean, np.nanmax))
        series.append(line(m, method, Band(known.astype(np.float64), mean, least, most, len(found)), "class"))
    about = (
        "Of the samples of a class that clients held when they trained, the share that they trained on, over all rounds"
        " of the budget. A method that leaves a class out shows here."
    )
    about += " Dots: mean over seeds. Lines: lowest to highest seed." if len(results.seeds) > 1 else ""
    spec = lines_spec("samples trained (%)", {"class": "class"}, series) | {"zero": 1, "whole": 1, "points": 1}
    return Chart("classes", "Which classes were trained", about, spec)


def seeds_text(results: Results) -> str:
    return " Lines: mean over seeds. Bands: lowest to highest seed." if len(results.seeds) > 1 else ""


def _times(runs: Sequence[StoredRun]) -> dict[str, dict[str, float]]:
    """Mean seconds per phase, by class of device, over the runs of a method."""
    counts: dict[str, float] = {}
    sums: dict[str, dict[str, float]] = {}
    for run in runs:
        for row in run.times.iter_rows(named=True):
            device = row["device"]
            counts[device] = counts.get(device, 0) + row["clients"]
            mine = sums.setdefault(device, dict.fromkeys(PHASES, 0.0))
            for name in PHASES:
                mine[name] += row["clients"] * (row[name] or 0.0)
    order = sorted(sums, key=lambda device: (CLASSES.index(device) if device in CLASSES else 9, device))
    return {device: {name: sums[device][name] / counts[device] for name in PHASES} for device in order}


def _factor(method: MethodScore) -> str:
    return speedup_text(method).partition(" (")[0].partition(" ±")[0]


def _interval(method: MethodScore) -> dict[str, Any]:
    low, high = method.speedup.low, method.speedup.high
    return (
        {}
        if high is None or not shows_interval(len(method.scores))
        else {"range": [number(max(low or 0.0, 0.0)), number(high)]}
    )
