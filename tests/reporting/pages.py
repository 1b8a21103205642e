"""A page without the rest of its report, which takes longer."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.reporting import score_comparison
from fedbalancer.reporting.page import page_html
from fedbalancer.reporting.results import load


def write_page(folder: Path) -> Path:
    results = load(folder)
    page = page_html(results, None if results.single else score_comparison(results))
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"
