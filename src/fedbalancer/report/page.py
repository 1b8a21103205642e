"""The report as one HTML file that opens from disk, on any screen, and fetches nothing. What it looks like is in
`page.html`; here is what it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedbalancer.report.axes import by_clock, clock_name
from fedbalancer.report.cells import shows_interval
from fedbalancer.report.charts import data_of
from fedbalancer.report.commands import commands
from fedbalancer.report.headline import headline
from fedbalancer.report.privacy import ABOUT as PRIVACY_ABOUT
from fedbalancer.report.privacy import HEADER as PRIVACY_HEADER
from fedbalancer.report.privacy import given_away
from fedbalancer.report.refused import HEADER as REFUSED_HEADER
from fedbalancer.report.refused import refused_rows
from fedbalancer.report.run_charts import charts
from fedbalancer.report.scores import Comparison
from fedbalancer.report.single import run_headline, run_summary
from fedbalancer.report.stored import Results
from fedbalancer.report.style import accuracy_text, looks, seconds
from fedbalancer.report.tables import HEADER, caption_lines, further_sheets, table_rows
from fedbalancer.report.templates import rendered, text_of

Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Live:
    """That a page renews itself from the server it came from: how often it asks, and what it shows now."""

    version: str
    every_ms: int = 1000


def page_html(results: Results, comparison: Comparison | None, live: Live | None = None) -> str:
    """The whole page: of a comparison, or of a single run where there is none."""
    drawn, look = charts(results, comparison), looks(results.methods)
    spoken = _run_words(results) if comparison is None else _comparison_words(results, comparison)
    return _rendered(
        **spoken,
        comparison=comparison,
        looks=look,
        clock=clock_name(results),
        runs=results.runs,
        unfinished=sum(run.curve.status != "done" for run in results.runs),
        problems=[*_unfinished(results), *(comparison.notes if comparison else ())],
        charts=drawn,
        privacy=list(given_away(results)),
        privacy_header=PRIVACY_HEADER,
        privacy_about=PRIVACY_ABOUT,
        refused=[row for run in results.runs for row in refused_rows(run.curve.method, run.curve.seed, run.refused)],
        refused_header=REFUSED_HEADER,
        settings=list(_settings_tables(results)),
        origin=_origin(results),
        commands=list(commands(results)),
        live=live,
        data=Markup(data_of(drawn, look)) if drawn else None,
    )


def waiting_html(title: str, why: str, live: Live) -> str:
    """A live page that has nothing to show yet, and says why."""
    return _rendered(title=title, headline=why, waiting=True, live=live)


def _rendered(**said: Any) -> str:
    nothing = {"waiting": False, "comparison": None, "data": None, "problems": (), "top": ()}
    return rendered(text_of("page.html"), **(nothing | said))


def _comparison_words(results: Results, comparison: Comparison) -> dict[str, Any]:
    top = [
        ("Target accuracy", accuracy_text(comparison.target)),
        ("Time budget", "" if comparison.budget_s is None else seconds(comparison.budget_s)),
        ("Seeds scored", f"{len(comparison.seeds)} of {len(results.seeds)}"),
        ("Task", _subject(results)),
    ]
    rules = [by_clock(results, line) for line in caption_lines(comparison)[1:]]
    return {
        "title": f"{results.task}: comparison of methods", "headline": headline(comparison), "top": top,
        "header": HEADER, "sheets": further_sheets(comparison), "rules": rules, "shows_interval": shows_interval,
        "scores": list(zip(comparison.methods, table_rows(comparison), strict=True)),
    }  # fmt: skip


def _run_words(results: Results) -> dict[str, Any]:
    summary = run_summary(results)
    top = [
        ("Final accuracy", accuracy_text(summary["accuracy"])),
        ("Best accuracy", accuracy_text(summary["best_accuracy"])),
        ("Rounds", str(summary["rounds"])),
        (clock_name(results).capitalize(), seconds(summary["clock_s"])),
        ("Task", _subject(results)),
    ]
    return {"title": f"{results.task}: {results.methods[0]}", "headline": run_headline(results), "top": top}


def _unfinished(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.curve.status != "done":
            because = f" ({run.why})" if run.why else ""
            yield f"{run.curve.method}, seed {run.curve.seed}: {run.curve.status}{because}"


def _settings_tables(results: Results) -> Iterator[tuple[str, Sequence[str], list[tuple[str, list[str]]]]]:
    """Title, columns and rows of the settings that all methods share, and then of those in which they differ."""
    manifests = {run.curve.method: run.manifest["settings"] for run in results.runs if run.manifest.get("settings")}
    flat = {method: dict(_flat(manifests[method])) for method in results.methods if method in manifests}
    rows = {
        key: [values.get(key, "–") for values in flat.values()]
        for key in sorted({key for values in flat.values() for key in values})
    }
    same = [(key, values[:1]) for key, values in rows.items() if len(set(values)) == 1]
    differing = [(key, values) for key, values in rows.items() if len(set(values)) > 1]
    if same:
        yield "Settings of all methods", ["Value"], same
    if differing:
        yield "Settings that differ", list(flat), differing


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as one level of dotted names.

    >>> dict(_flat({"pace": {"window": 20}, "seeds": [0, 1]}))
    {'pace.window': '20', 'seeds': '[0, 1]'}
    """
    if not isinstance(value, dict):
        yield prefix, str(value)
        return
    for key, item in value.items():
        yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))


def _origin(results: Results) -> Facts:
    """Where the numbers come from."""
    started = {str(run.manifest.get("started") or "") for run in results.runs}
    dates = sorted(date[:19].replace("T", " ") for date in started if date)
    recorded = [found for run in results.runs if isinstance(found := run.manifest.get("versions"), dict)]
    versions = {f"{name} {version}" for found in recorded for name, version in found.items()}
    return [
        ("Task", results.task),
        ("Variant", results.variant),
        ("Scale", results.scale),
        ("Seeds", ", ".join(map(str, results.seeds))),
        ("Date", " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "not recorded"),
        ("Versions", ", ".join(sorted(versions)) or "not recorded"),
    ]


def _subject(results: Results) -> str:
    inside = ", ".join(filter(None, [results.variant, results.scale and f"{results.scale} scale"]))
    return f"{results.task} ({inside})" if inside else results.task
