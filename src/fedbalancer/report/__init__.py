"""Reports: scores by the paper's rule, a table, figures and a page, for a comparison or for a single run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedbalancer.report.scores import (
    Comparison,
    MethodScore,
    RunCurve,
    Score,
    SeedScore,
    Spread,
    Stamp,
    load_comparison,
    score,
    score_comparison,
    score_results,
)

__all__ = [
    "Comparison",
    "MethodScore",
    "ReportPaths",
    "RunCurve",
    "Score",
    "SeedScore",
    "Spread",
    "load_comparison",
    "score",
    "score_comparison",
    "score_folder",
    "score_results",
    "write_report",
]


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report."""

    summary: Path
    table: Path
    page: Path
    figures: tuple[Path, ...]


def score_folder(folder: Path, *, stamp: Stamp = "end") -> Comparison:
    """The scores of a comparison folder, without writing anything."""
    return score_comparison(load_comparison(Path(folder)), stamp)


def write_report(folder: Path, *, stamp: Stamp = "end") -> ReportPaths:
    """Write `summary.json`, `table.md`, `figures/` and `report.html` into a comparison folder or a run folder.

    Every file is replaced whole, so a report that is open in a browser can be made again at any time.
    """
    from fedbalancer.files import write_json, write_text
    from fedbalancer.report.figures import write_figures
    from fedbalancer.report.folders import load
    from fedbalancer.report.page import page_html
    from fedbalancer.report.single import run_markdown, run_summary
    from fedbalancer.report.tables import markdown_table

    folder = Path(folder)
    results = load(folder)
    comparison = score_results(results, stamp)
    paths = ReportPaths(
        summary=folder / "summary.json",
        table=folder / "table.md",
        page=folder / "report.html",
        figures=write_figures(results, comparison, folder / "figures"),
    )
    write_json(paths.summary, run_summary(results) if comparison is None else comparison.to_json())
    write_text(paths.table, run_markdown(results) if comparison is None else markdown_table(comparison))
    write_text(paths.page, page_html(results, comparison))
    return paths
