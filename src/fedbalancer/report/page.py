"""The report as one HTML file that opens from disk, on any screen, and fetches nothing."""

from __future__ import annotations

from html import escape
from importlib import resources
from pathlib import Path

from fedbalancer.files import write_bytes
from fedbalancer.report import sections
from fedbalancer.report.charts import Chart, charts
from fedbalancer.report.folders import Results, load
from fedbalancer.report.headline import headline
from fedbalancer.report.scores import Comparison, Stamp, score_results
from fedbalancer.report.single import run_headline, run_summary
from fedbalancer.report.style import seconds

__all__ = ["page_html", "score_results", "write_page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses anything that is not in the file."""


def write_page(folder: Path, *, stamp: Stamp = "end") -> Path:
    """Write `report.html` into a comparison folder or a run folder."""
    results = load(folder)
    path = folder / "report.html"
    write_bytes(path, page_html(results, score_results(results, stamp)).encode("utf-8"))
    return path


def page_html(results: Results, comparison: Comparison | None) -> str:
    """The whole page."""
    drawn = charts(results, comparison)
    title = f"{results.task}: {results.methods[0] if comparison is None else 'comparison of methods'}"
    body = _single_body(results, drawn) if comparison is None else _comparison_body(results, comparison, drawn)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_resource('page.css')}</style>\n</head>\n<body>\n"
        f'<header><p class="kicker">fedbalancer report</p><h1>{escape(title)}</h1></header>\n'
        f"<main>\n{body}\n</main>\n{_scripts(drawn)}</body>\n</html>\n"
    )


def _comparison_body(results: Results, comparison: Comparison, drawn: list[Chart]) -> str:
    known = comparison.target is not None and comparison.budget_s is not None
    facts = [
        ("Target accuracy", f"{comparison.target:.3f}" if known else ""),
        ("Time budget", seconds(comparison.budget_s) if comparison.budget_s is not None else ""),
        ("Seeds scored", f"{len(comparison.seeds)} of {len(results.seeds)}"),
        ("Task", _subject(results)),
    ]
    return "\n".join([
        f'<p class="headline">{escape(headline(comparison))}</p>',
        sections.facts(facts),
        sections.problems(results, comparison.notes),
        f'<section class="card"><h2>Scores</h2>{sections.score_table(comparison, results)}</section>',
        _charts(results, drawn),
        _details(results),
    ])  # fmt: skip


def _single_body(results: Results, drawn: list[Chart]) -> str:
    summary = run_summary(results)
    accuracy, best = summary["accuracy"], summary["best_accuracy"]
    facts = [
        ("Final accuracy", "" if accuracy is None else f"{accuracy:.3f}"),
        ("Best accuracy", "" if best is None else f"{best:.3f}"),
        ("Rounds", str(summary["rounds"])),
        ("Simulated time", seconds(summary["clock_s"])),
        ("Task", _subject(results)),
    ]
    return "\n".join([
        f'<p class="headline">{escape(run_headline(results))}</p>',
        sections.facts(facts),
        sections.problems(results, ()),
        _charts(results, drawn),
        _details(results),
    ])  # fmt: skip


def _charts(results: Results, drawn: list[Chart]) -> str:
    if not drawn:
        return '<section class="card"><h2>Charts</h2><p>No run has recorded a round yet.</p></section>'
    legend = sections.legend(results) if len(results.methods) > 1 else ""
    hide = " The buttons show or hide a method in all charts." if legend else ""
    hint = f'<p class="hint">Drag in a chart to zoom, double-click to go back.{hide}</p>'
    figures = "\n".join(sections.chart_figure(chart) for chart in drawn)
    fallback = "<noscript><p>The charts need JavaScript; the folder figures holds them as images.</p></noscript>"
    return f'<section aria-label="Charts">{fallback}{hint}{legend}<div class="grid">{figures}</div></section>'


def _details(results: Results) -> str:
    return (
        f'<section class="card"><h2>Runs</h2>{sections.run_table(results)}</section>\n'
        '<section class="card"><details id="settings"><summary>Settings</summary>'
        f"{sections.settings(results)}</details></section>\n"
        f'<section class="card"><h2>Where this comes from</h2>{sections.provenance(results)}</section>'
    )


def _scripts(drawn: list[Chart]) -> str:
    """plotly once, the charts as data, and the script that draws them."""
    if not drawn:
        return ""
    from plotly.io.json import to_json_plotly
    from plotly.offline import get_plotlyjs

    # to_json_plotly writes < > and / as escapes, so that no value can end the script element
    specs = to_json_plotly(
        [{"id": f"chart-{chart.name}", "data": chart.data, "layout": chart.layout} for chart in drawn]
    )
    return (
        f"<script>{get_plotlyjs()}</script>\n"
        f'<script type="application/json" id="charts">{specs}</script>\n<script>\n{_resource("page.js")}</script>\n'
    )


def _subject(results: Results) -> str:
    inside = ", ".join(filter(None, [results.variant, results.scale and f"{results.scale} scale"]))
    return f"{results.task} ({inside})" if inside else results.task


def _resource(name: str) -> str:
    return resources.files("fedbalancer.report").joinpath(name).read_text(encoding="utf-8")
