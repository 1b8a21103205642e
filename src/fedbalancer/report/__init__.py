"""Reports: scores, tables, figures and a page, for a comparison or for a single run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbalancer.report.estimate import Estimate
from fedbalancer.report.folders import load, load_comparison
from fedbalancer.report.ratio import Arrival, Ratio
from fedbalancer.report.rule import Rule, Stamp, checked_rule
from fedbalancer.report.scores import (
    Comparison,
    MethodScore,
    Score,
    SeedScore,
    TargetScore,
    checked_targets,
    score,
    score_comparison,
)
from fedbalancer.report.stored import RunCurve
from fedbalancer.report.values import Cost
from fedbalancer.store.comparison import TARGETS

__all__ = [
    "TARGETS",
    "Arrival",
    "Comparison",
    "Cost",
    "Estimate",
    "MethodScore",
    "Ratio",
    "Report",
    "Rule",
    "RunCurve",
    "Score",
    "SeedScore",
    "TargetScore",
    "score",
    "score_comparison",
    "score_folder",
    "write_report",
]


@dataclass(frozen=True)
class Report:
    """The files of a report, the scores in them (None for a single run), and what of the folder is damaged, in
    words."""

    summary: Path
    table: Path
    page: Path
    figures: tuple[Path, ...]
    comparison: Comparison | None
    damaged: tuple[str, ...] = ()


def score_folder(
    folder: Path, *, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Comparison:
    """The scores of a comparison folder, without writing anything."""
    return score_comparison(load_comparison(Path(folder)), stamp, rule, targets)


def write_report(
    folder: Path, *, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Report:
    """Write `summary.json`, `table.md`, `figures/` and `report.html` into a comparison folder or a run folder.

    `rule` (fair or paper) is how runs are scored and `targets` are shares of the reference's final accuracy; unless
    told, they are those that the runs were made for. By the paper's rule, `stamp` says whether an evaluation counts at
    the end of its round or, as in the authors' notebooks, at its start.
    Every file is replaced whole, so a report that is open in a browser can be made again at any time.
    """
    from fedbalancer.files import write_json, write_text
    from fedbalancer.report.axes import by_clock
    from fedbalancer.report.figures import write_figures
    from fedbalancer.report.page import page_html
    from fedbalancer.report.privacy import markdown_privacy
    from fedbalancer.report.single import run_markdown, run_summary
    from fedbalancer.report.tables import markdown_table
    from fedbalancer.store.contents import refuse_links

    folder = Path(folder)
    refuse_links(folder, "figures")
    results = load(folder)
    checked_rule(rule or results.rule, "end" if rule is None else stamp)
    checked_targets(results.targets if targets is None else targets)
    comparison = None if results.single else score_comparison(results, stamp, rule, targets)
    report = Report(
        summary=folder / "summary.json",
        table=folder / "table.md",
        page=folder / "report.html",
        figures=write_figures(results, comparison, folder / "figures"),
        comparison=comparison,
        damaged=tuple(
            f"{run.curve.method} seed {run.curve.seed}: {run.why}"
            for run in results.runs
            if run.curve.status == "damaged"
        ),
    )
    write_json(report.summary, run_summary(results) if comparison is None else comparison.to_json())
    table = run_markdown(results) if comparison is None else by_clock(results, markdown_table(comparison))
    private = "" if comparison is None else markdown_privacy(results)
    write_text(report.table, f"{table}\n{private}" if private else table)
    write_text(report.page, page_html(results, comparison))
    return report
