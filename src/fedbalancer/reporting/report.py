"""Write the report of a folder: summary, table, figures and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.results import load, load_comparison
from fedbalancer.reporting.rule import Stamp, check_rule
from fedbalancer.reporting.scores import check_targets, score_comparison


@dataclass(frozen=True)
class Report:
    """The files of a report.

    Attributes:
        summary: The file summary.json.
        table: The file table.md.
        page: The file report.html.
        figures: The files of the figures.
        comparison: The scores; None for a single run.
        damaged: Descriptions of the damaged runs of the folder.
    """

    summary: Path
    table: Path
    page: Path
    figures: tuple[Path, ...]
    comparison: Comparison | None
    damaged: tuple[str, ...] = ()


def score_folder(
    folder: Path, *, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Comparison:
    """Score a comparison folder without writing anything.

    Args:
        folder: The comparison folder.
        stamp: Whether an evaluation counts at the end or the start of its round. "start" implies the rule "paper".
        rule: "fair" or "paper". Default: the rule of the comparison.
        targets: Shares of the reference's final accuracy. Default: the targets of the comparison.

    Raises:
        RunFolderError: If the folder is not a comparison.
        UnknownName: If there is no such rule.
        BadSetting: If a target is not between 0 and 2, or the stamp does not fit the rule.
    """
    return score_comparison(load_comparison(Path(folder)), stamp, rule, targets)


def write_report(
    folder: Path, *, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Report:
    """Write `summary.json`, `table.md`, `figures/` and `report.html` into a comparison folder or a run folder.

    Every file is replaced atomically, so a report can be rewritten while it is open in a browser.

    Args:
        folder: The folder.
        stamp: Whether an evaluation counts at the end of its round or, as in the authors' notebooks, at its start.
            "start" implies the rule "paper".
        rule: "fair" or "paper". Default: the rule of the comparison.
        targets: Shares of the reference's final accuracy. Default: the targets of the comparison.

    Returns:
        The files and the scores.

    Raises:
        RunFolderError: If the folder is neither a run nor a comparison, or contains links to other places.
        UnknownName: If there is no such rule.
        BadSetting: If a target is not between 0 and 2, or the stamp does not fit the rule.
    """
    from fedbalancer.core.files import write_json, write_text
    from fedbalancer.reporting.figures import write_figures
    from fedbalancer.reporting.page import page_html
    from fedbalancer.reporting.privacy import markdown_privacy
    from fedbalancer.reporting.series import name_clock
    from fedbalancer.reporting.summary import run_markdown, run_summary
    from fedbalancer.reporting.tables import markdown_table
    from fedbalancer.store.contents import refuse_links

    folder = Path(folder)
    refuse_links(folder, "figures")
    results = load(folder)
    check_rule(rule or results.rule, "end" if rule is None else stamp)
    check_targets(results.targets if targets is None else targets)
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
    table = run_markdown(results) if comparison is None else name_clock(results, markdown_table(comparison))
    private = "" if comparison is None else markdown_privacy(results)
    write_text(report.table, f"{table}\n{private}" if private else table)
    write_text(report.page, page_html(results, comparison))
    return report
