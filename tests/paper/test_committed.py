"""The pages in docs/results are those that this code makes of the tables, and all work in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import BROWSER, DRIVER, complaints, fetched, opened, pointed, resized, started, texts

from fedbalancer.paper.folder import read_document, read_why
from fedbalancer.paper.items import load_item
from fedbalancer.paper.page import item_markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FOLDERS = sorted(file.parent for file in RESULTS.glob("*/item.json"))
NAMES = [folder.name for folder in FOLDERS]
WITHOUT_CHARTS = {"table4"}

pytestmark = pytest.mark.skipif(not FOLDERS, reason="needs the folder of results")


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_text_is_what_the_tables_show_now(folder: Path) -> None:
    document = read_document(folder)
    shown = load_item(document["item"]).present(
        {file.stem: pl.read_parquet(file, glob=False) for file in folder.glob("*.parquet")}
    )
    anew = f"fedbalancer report {folder.relative_to(RESULTS.parents[1])}"
    text = item_markdown({**document, "headline": shown.headline}, shown, read_why(folder))
    assert (folder / f"{document['item']}.md").read_text(encoding="utf-8") == text, anew
    assert document["headline"] == shown.headline, anew
    assert document["findings"] == json.loads(json.dumps([found.to_json() for found in shown.findings])), anew


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (BROWSER and DRIVER):
        pytest.skip("needs chromium and chromedriver on the path")
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_its_page_draws_answers_and_fits(folder: Path, browser: Any) -> None:
    page = folder / f"{read_document(folder)['item']}.html"
    opened(browser, page.as_uri())
    charts = texts(browser, ".chart")
    assert len(charts) == len(texts(browser, ".chart > svg"))
    assert bool(charts) == (folder.name not in WITHOUT_CHARTS)
    if charts:
        assert pointed(browser, ".chart"), "pointing at a chart shows values"
    assert [url for url in fetched(browser) if not url.startswith(("file://", "data:"))] == []
    assert complaints(browser) == []
    for width in (1280, 390):
        resized(browser, width)
    assert page.stat().st_size < 2_000_000
