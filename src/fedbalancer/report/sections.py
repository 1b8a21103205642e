"""The parts of the page as HTML. Everything that comes from a file is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedbalancer.report.charts import Chart
from fedbalancer.report.folders import Results, StoredRun
from fedbalancer.report.scores import Comparison, MethodScore
from fedbalancer.report.style import Look, looks, seconds, size_text
from fedbalancer.report.tables import HEADER, caption_lines, is_best, spread_text

SVG_DASHES = {"solid": "", "dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3"}
FEW_RUNS = 8
"""A longer table of runs is folded."""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Short facts side by side."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs if value)
    return f'<dl class="facts">{items}</dl>'


def score_table(comparison: Comparison, results: Results) -> str:
    """The scores, a row per method, with what they mean below."""
    look = looks(results.methods)
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADER)
    body = "".join(_score_row(comparison, method, look[method.method]) for method in comparison.methods)
    notes = "".join(f"<p>{escape(line)}</p>" for line in caption_lines(comparison)[1:])
    table = f'<table id="scores"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"{scrolling(table, 'Scores')}<details><summary>How this is scored</summary>{notes}</details>"


def legend(results: Results) -> str:
    """One legend for all charts; each method is a button that shows or hides it."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-method="{escape(method)}">'
        f"{_swatch(look)}{escape(method)}</button>"
        for method, look in looks(results.methods).items()
    )
    return f'<div class="legend" role="group" aria-label="Show or hide methods in the charts">{buttons}</div>'


def chart_figure(chart: Chart) -> str:
    """The place of a chart; the script of the page draws into it."""
    wide = " wide" if chart.wide else ""
    return (
        f'<figure class="card{wide}"><h3>{escape(chart.title)}</h3>'
        f'<div class="chart" id="chart-{chart.name}" role="img" '
        f'aria-label="{escape(chart.title)}. {escape(chart.about)}"></div>'
        f"<figcaption>{escape(chart.about)}</figcaption></figure>"
    )


def problems(results: Results, notes: Sequence[str]) -> str:
    """What went wrong or is not finished; nothing if all is well."""
    unwell = [run for run in results.runs if run.curve.status != "done"]
    lines = [f"{run.curve.method}, seed {run.curve.seed}: {run.curve.status}{_because(run)}" for run in unwell]
    if not lines and not notes:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in [*lines, *notes])
    title = f"{len(unwell)} of {len(results.runs)} runs are not done" if unwell else "To keep in mind"
    return f'<section class="notice" role="note"><h2>{title}</h2><ul>{items}</ul></section>'


def run_table(results: Results) -> str:
    """The status of every run."""
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Method", "Seed", "Status", "Rounds", "Simulated time", "Accuracy")
    )
    body = "".join(_run_row(run) for run in results.runs)
    table = scrolling(f'<table id="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>', "Runs")
    done = sum(run.curve.status == "done" for run in results.runs)
    opened = " open" if len(results.runs) <= FEW_RUNS else ""
    return f"<details{opened}><summary>{done} of {len(results.runs)} runs are done</summary>{table}</details>"


def settings(results: Results) -> str:
    """The settings: those that all methods share, and then those in which they differ."""
    flat = {method: _settings_of(results, method) for method in results.methods}
    flat = {method: values for method, values in flat.items() if values}
    keys = sorted({key for values in flat.values() for key in values})
    same = [key for key in keys if len({values.get(key) for values in flat.values()}) == 1]
    if not keys:
        return "<p>The runs recorded no settings.</p>"
    shared = _settings_table(same, {"Value": next(iter(flat.values()))}, "Settings of all methods") if same else ""
    differing = [key for key in keys if key not in same]
    return shared + (_settings_table(differing, flat, "Settings that differ") if differing else "")


def provenance(results: Results) -> str:
    """Where the numbers come from."""
    dates = sorted({run.started[:19].replace("T", " ") for run in results.runs if run.started})
    versions = {
        f"{name} {version}"
        for run in results.runs
        if isinstance(run.manifest.get("versions"), dict)
        for name, version in run.manifest["versions"].items()
    }
    return facts([
        ("Task", results.task),
        ("Variant", results.variant),
        ("Scale", results.scale),
        ("Seeds", ", ".join(map(str, results.seeds))),
        ("Date", dates[0] if len(dates) < 2 else f"{dates[0]} to {dates[-1]}") if dates else ("Date", "not recorded"),
        ("Versions", ", ".join(sorted(versions)) or "not recorded"),
    ])  # fmt: skip


def scrolling(table: str, name: str) -> str:
    """A table that scrolls by itself on a narrow screen, also with the keyboard."""
    return f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">{table}</div>'


def _score_row(comparison: Comparison, method: MethodScore, look: Look) -> str:
    speedup, accuracy = _split(spread_text(method.speedup, 2)), _split(spread_text(method.accuracy, 3))
    if is_best(comparison, method, lambda m: m.speedup.mean) and method.reached:
        speedup = f"<strong>{speedup}</strong>"
    if is_best(comparison, method, lambda m: m.accuracy.mean):
        accuracy = f"<strong>{accuracy}</strong>"
    low, high = method.speedup.low, method.speedup.high
    interval = ""
    if low is not None and high is not None:
        interval = (
            f'<small title="95% interval"><span class="pre">95%: </span>{max(low, 0.0):.2f} to {high:.2f}</small>'
        )
    return (
        f'<tr><th scope="row">{_swatch(look)}{escape(method.method)}</th><td>{speedup}{interval}</td>'
        f"<td>{method.reached}/{len(method.scores)}</td><td>{accuracy}</td>"
        f"<td>{size_text(method.down_bytes.mean)}</td><td>{size_text(method.up_bytes.mean)}</td></tr>"
    )


def _split(text: str) -> str:
    """Mean and deviation apart, for a narrow screen has them on two lines."""
    mean, plus_minus, std = text.partition(" ± ")
    return f'{mean}<span class="pm"> ± {std}</span>' if plus_minus else mean


def _run_row(run: StoredRun) -> str:
    curve, known = run.curve, {"done", "running", "failed", "stopped", "missing", "damaged"}
    kind = curve.status if curve.status in known else "unknown"
    accuracy = (
        f"{curve.evals['accuracy'][-1]:.3f}" if curve.evals.height and curve.evals["accuracy"][-1] is not None else "–"
    )
    why = f"<small>{escape(run.why)}</small>" if run.why and curve.status != "done" else ""
    return (
        f'<tr><th scope="row">{escape(curve.method)}</th><td>{curve.seed}</td>'
        f'<td><span class="status {kind}">{escape(curve.status)}</span>{why}</td>'
        f"<td>{run.rounds.height}</td><td>{seconds(curve.last_s)}</td><td>{accuracy}</td></tr>"
    )


def _swatch(look: Look) -> str:
    return (
        '<svg class="swatch" width="30" height="10" aria-hidden="true"><line x1="1" y1="5" x2="29" y2="5" '
        f'stroke="{look.colour}" stroke-width="{look.width + 0.8:.1f}" '
        f'stroke-dasharray="{SVG_DASHES[look.dash]}"/></svg>'
    )


def _settings_table(keys: Sequence[str], columns: Mapping[str, Mapping[str, str]], name: str) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in ("Setting", *columns))
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(values.get(key, '–'))}</td>" for values in columns.values())
        + "</tr>"
        for key in keys
    )
    table = f'<table class="settings"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<h3>{escape(name)}</h3>" + scrolling(table, name)


def _settings_of(results: Results, method: str) -> dict[str, str]:
    manifests = [run.manifest for run in results.runs if run.curve.method == method]
    return next((_flatten(manifest["settings"]) for manifest in manifests if manifest.get("settings")), {})


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of dotted names.

    >>> _flatten({"pace": {"window": 20}, "seeds": [0, 1]})
    {'pace.window': '20', 'seeds': '[0, 1]'}
    """
    if not isinstance(value, dict):
        return {prefix: str(value)}
    flat: dict[str, str] = {}
    for key, item in value.items():
        flat.update(_flatten(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _because(run: StoredRun) -> str:
    return f" ({run.why})" if run.why else ""
