"""A page without the rest of its report, which takes longer."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.report import score_comparison
from fedbalancer.report.folders import load
from fedbalancer.report.page import page_html


def write_page(folder: Path) -> Path:
    results = load(folder)
    page = page_html(results, None if results.single else score_comparison(results))
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"
