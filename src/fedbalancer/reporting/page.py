"""The report as one HTML file that opens from disk and loads nothing else.

The layout is in `assets/page.html`; `render` also serves the pages of the leaderboard and of the paper's items, so that
all pages share one style and one script.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from fedbalancer.reporting.charts import encode_charts, make_charts
from fedbalancer.reporting.clients import REJECTED_HEADER, list_rejected
from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.privacy import ABOUT as PRIVACY_ABOUT
from fedbalancer.reporting.privacy import HEADER as PRIVACY_HEADER
from fedbalancer.reporting.privacy import account_privacy
from fedbalancer.reporting.results import Results
from fedbalancer.reporting.series import clock_name, name_clock
from fedbalancer.reporting.style import accuracy_text, choose_looks, time_text
from fedbalancer.reporting.summary import run_summary, write_headline, write_run_headline
from fedbalancer.reporting.tables import caption_lines, make_header, make_rows, make_sheets, shows_interval
from fedbalancer.store import ComparisonFile

Facts = list[tuple[str, str]]
_OPTIONS = {
    "scale": "small", "users": None, "variant": None, "target_metric": None, "backend": "fast", "device": "cpu",
}  # fmt: skip
"""Options that all runs of a command share, with their defaults."""


@dataclass(frozen=True)
class Live:
    """A page that updates itself from its server: its version, and the interval of its requests."""

    version: str
    every_ms: int = 1000


def page_html(
    results: Results, comparison: Comparison | None, live: Live | None = None, remarks: Sequence[str] = ()
) -> str:
    """Render the page of a comparison or a single run.

    Args:
        results: The runs.
        comparison: Their scores; None for a single run.
        live: Set if the page updates itself.
        remarks: Lines about the rounds of a run, such as replays under other methods.

    Returns:
        The HTML document.
    """
    charts, looks = make_charts(results, comparison), choose_looks(results.methods)
    texts = _run_texts(results) if comparison is None else _comparison_texts(results, comparison)
    return _render_page(
        **texts,
        comparison=comparison,
        looks=looks,
        clock=clock_name(results),
        metric=results.metric.heading,
        runs=results.runs,
        unfinished=sum(run.curve.status != "done" for run in results.runs),
        problems=[*_unfinished(results), *(comparison.notes if comparison else ())],
        charts=charts,
        privacy=list(account_privacy(results)),
        privacy_header=PRIVACY_HEADER,
        privacy_about=PRIVACY_ABOUT,
        rejected=[row for run in results.runs for row in list_rejected(run.curve.method, run.curve.seed, run.rejected)],
        rejected_header=REJECTED_HEADER,
        settings=list(_settings_tables(results)),
        origin=_origin(results),
        commands=list(list_commands(results)),
        live=live,
        remarks=remarks,
        data=Markup(encode_charts(charts, looks)) if charts else None,
    )


def waiting_html(title: str, reason: str, live: Live) -> str:
    """Render a live page that has nothing to show yet, with the reason."""
    return _render_page(title=title, headline=reason, waiting=True, live=live)


def render(template: str, **values: Any) -> str:
    """Render a page from a template.

    Args:
        template: Text of the template; it may import the macros of `parts.html`.
        values: Variables of the template; all strings are escaped.

    Returns:
        The HTML document, with the common style and script included.
    """
    script = read_asset("charts.js") + read_asset("page.js").replace('"use strict";\n', "", 1)
    return _compile(template).render(values, css=Markup(read_asset("page.css")), js=Markup(script))


@cache
def _compile(template: str) -> Template:
    """Compile a template once per process: it takes longer than to fill it in."""
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(read_asset),
    )
    environment.filters |= {"seconds": time_text, "accuracy": accuracy_text}
    return environment.from_string(template)


def read_asset(name: str, package: str = "fedbalancer.reporting") -> str:
    """Read a file of the folder `assets` of a package."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def list_commands(results: Results) -> Iterator[str]:
    """Yield the commands that reproduce the results and their report.

    Args:
        results: The runs. A run without a recorded command, such as one started from Python, only has a report command.
    """
    spec = results.runs[0].manifest.get("spec") if results.single else ComparisonFile.read(results.folder).spec
    if isinstance(spec, Mapping) and isinstance(spec.get("task"), str) and spec.get("method"):
        yield shlex.join(_run_command(results, spec))
    yield shlex.join(["fedbalancer", "report", _relative(results.folder)])


def _relative(folder: Path) -> str:
    """Return the folder relative to the current one if it is inside, because a page may be passed on to others."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _run_command(results: Results, spec: Mapping[str, Any]) -> Iterator[str]:
    if results.single:
        yield from ["fedbalancer", "run", spec["task"], "--method", spec["method"], "--seed", str(spec["seed"])]
        if spec.get("budget_s") is not None:
            yield from ["--budget", f"{spec['budget_s']:g}"]
        elif spec.get("rounds") is not None:
            yield from ["--rounds", str(spec["rounds"])]
    else:
        yield from ["fedbalancer", "compare", spec["task"], "--methods", ",".join(results.methods)]
        yield from ["--seeds", _seeds(results.seeds)]
        if results.rule != "fair":
            yield from ["--rule", results.rule]
    for name, default in _OPTIONS.items():
        if spec.get(name, default) != default:
            yield from [f"--{name.replace('_', '-')}", str(spec[name])]
    for key, value in (spec.get("settings") or {}).items():
        if key != "rounds" or results.single:
            yield from ["--set", f"{key}={value}"]
        else:
            yield from ["--rounds", str(value)]
    yield from ["--out", _relative(results.folder)]


def _seeds(seeds: tuple[int, ...]) -> str:
    """Format seeds for the option `--seeds`.

    Example:
        >>> _seeds((0, 1, 2)), _seeds((10, 11, 12)), _seeds((4, 7))
        ('3', '10..12', '4,7')
    """
    if seeds != tuple(range(seeds[0], seeds[0] + len(seeds))):
        return ",".join(map(str, seeds))
    return str(len(seeds)) if not seeds[0] else f"{seeds[0]}..{seeds[-1]}"


def _render_page(**values: Any) -> str:
    defaults = {"waiting": False, "comparison": None, "data": None, "problems": (), "remarks": (), "top": ()}
    return render(read_asset("page.html"), **(defaults | values))


def _comparison_texts(results: Results, comparison: Comparison) -> dict[str, Any]:
    top = [
        (f"Target {comparison.metric.title}", accuracy_text(comparison.target)),
        ("Time budget", "" if comparison.budget_s is None else time_text(comparison.budget_s)),
        ("Seeds scored", f"{len(comparison.seeds)} of {len(results.seeds)}"),
        ("Task", _subject(results)),
    ]
    rules = [name_clock(results, line) for line in caption_lines(comparison)[1:]]
    return {
        "title": f"{results.task}: comparison of methods", "headline": write_headline(comparison), "top": top,
        "header": make_header(comparison), "sheets": make_sheets(comparison), "rules": rules,
        "shows_interval": shows_interval,
        "scores": list(zip(comparison.methods, make_rows(comparison), strict=True)),
    }  # fmt: skip


def _run_texts(results: Results) -> dict[str, Any]:
    summary, metric = run_summary(results), results.metric
    top = [
        (f"Final {metric.title}", accuracy_text(summary[metric.name])),
        (f"Best {metric.title}", accuracy_text(summary[f"best_{metric.name}"])),
        ("Rounds", str(summary["rounds"])),
        (clock_name(results).capitalize(), time_text(summary["clock_s"])),
        ("Task", _subject(results)),
    ]
    return {"title": f"{results.task}: {results.methods[0]}", "headline": write_run_headline(results), "top": top}


def _unfinished(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.curve.status != "done":
            reason = f" ({run.why})" if run.why else ""
            yield f"{run.curve.method}, seed {run.curve.seed}: {run.curve.status}{reason}"


def _settings_tables(results: Results) -> Iterator[tuple[str, Sequence[str], list[tuple[str, list[str]]]]]:
    """Yield title, columns and rows: settings that all methods share, then settings that differ."""
    manifests = {run.curve.method: run.manifest["settings"] for run in results.runs if run.manifest.get("settings")}
    flat = {method: dict(_flatten(manifests[method])) for method in results.methods if method in manifests}
    rows = {
        key: [values.get(key, "–") for values in flat.values()]
        for key in sorted({key for values in flat.values() for key in values})
    }
    shared = [(key, values[:1]) for key, values in rows.items() if len(set(values)) == 1]
    differing = [(key, values) for key, values in rows.items() if len(set(values)) > 1]
    if shared:
        yield "Settings of all methods", ["Value"], shared
    if differing:
        yield "Settings that differ", list(flat), differing


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to dotted names.

    Example:
        >>> dict(_flatten({"pace": {"window": 20}, "seeds": [0, 1]}))
        {'pace.window': '20', 'seeds': '[0, 1]'}
    """
    if not isinstance(value, dict):
        yield prefix, str(value)
        return
    for key, item in value.items():
        yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))


def _origin(results: Results) -> Facts:
    """Return task, seeds, dates and versions of the runs."""
    started = {str(run.manifest.get("started") or "") for run in results.runs}
    dates = sorted(date[:19].replace("T", " ") for date in started if date)
    recorded = [run.manifest.get("versions") for run in results.runs]
    versions = {f"{name} {version}" for each in recorded if isinstance(each, dict) for name, version in each.items()}
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
