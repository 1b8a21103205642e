"""The page of an item in a real browser: its charts answer, methods can be hidden, names and notes stay text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSER, DRIVER, complaints, fetched, opened, pointed, resized, started, texts
from paper.sample_items import frames

from fedbalancer.paper.folder import describe_part, write_item
from fedbalancer.paper.item import Request
from fedbalancer.paper.items.comparisons import FIG7 as FIGURE7
from fedbalancer.paper.items.testbed import NAME, Table5
from fedbalancer.paper.items.testbed import PRINTED as TABLE5
from fedbalancer.paper.scores import Group

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")

HOSTILE = "x<svg onload=alert(1)>"
WHY = f"**har** is [another](../fig6/fig6.md).\n\n- {HOSTILE}\n- [bad](javascript:alert(1))\n"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 5, whose methods have figures of the paper beside them, and one with a name that is no name."""
    methods = (*TABLE5, HOSTILE)
    item, folder = Table5(methods=methods), tmp_path_factory.mktemp("items") / "table5"
    tables = frames([Group(NAME, methods)], "har")
    tables["lags"] = tables["scores"].select("task", "method", "seed").with_columns(late_share=0.0)
    folder.mkdir()
    (folder / "why.md").write_text(WHY)
    known = describe_part(Request(tasks=("har",)), "fedbalancer paper table5", 1.0, [HOSTILE])
    made = write_item(item, folder, tables, {"har": known}, ["har"]).page
    opened(browser, made.as_uri())
    return made


def test_it_draws_from_disk_without_errors_or_network(browser: Any, page: Path) -> None:
    assert len(texts(browser, ".chart svg")) == 3
    assert [url for url in fetched(browser) if not url.startswith(("file://", "data:"))] == []
    assert complaints(browser) == []


def test_pointing_shows_ours_the_interval_and_the_papers(browser: Any, page: Path) -> None:
    said = {pointed(browser, "#chart-speedup-1", y=place / 40) for place in range(40)}
    (of_fedbalancer,) = [text for text in said if text.startswith("fedbalancer\n")]
    assert "95% interval" in of_fedbalancer
    assert f"the paper's\n{TABLE5['fedbalancer'][0].mean:g}" in of_fedbalancer
    assert "share of the time budget: 0." in pointed(browser, "#chart-accuracy-0")


def test_hiding_a_method_hides_it_in_every_chart(browser: Any, page: Path) -> None:
    before = len(texts(browser, "#chart-speedup-1 .series")), len(texts(browser, "#chart-accuracy-0 .series"))
    browser.find_element("css selector", ".legend button").click()
    after = len(texts(browser, "#chart-speedup-1 .series")), len(texts(browser, "#chart-accuracy-0 .series"))
    browser.find_element("css selector", ".legend button").click()
    assert after == (before[0] - 1, before[1] - 1)


def test_names_and_notes_are_text_and_the_paragraph_is_markdown(browser: Any, page: Path) -> None:
    assert HOSTILE in texts(browser, ".legend button")
    assert HOSTILE in texts(browser, ".why li")
    assert any(HOSTILE in note for note in texts(browser, "main ul li"))
    assert texts(browser, "[onload], main svg svg") == []
    assert texts(browser, ".why strong") == ["har"]
    links = browser.execute_script("return [...document.querySelectorAll('.why a')].map(a => a.getAttribute('href'))")
    assert links == ["../fig6/fig6.html"]


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_of_a_screen(browser: Any, page: Path, width: int) -> None:
    resized(browser, width)


def test_an_item_of_several_groups_has_charts_for_each(browser: Any, tmp_path: Path) -> None:
    known = describe_part(Request(tasks=("har",)), "fedbalancer paper fig7", 1.0, [])
    made = write_item(FIGURE7, tmp_path, frames(FIGURE7.groups, "har"), {"har": known}, ["har"]).page
    opened(browser, made.as_uri())
    assert len(texts(browser, ".chart svg")) == 1 + 2 * len(FIGURE7.groups)
    assert complaints(browser) == []
