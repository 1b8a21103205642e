"""The leaderboard in a real browser: it filters, sorts, fits a phone, and takes names for nothing but text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reporting.conftest import write_comparison
from reporting.results_folder import NASTY, write_canter, write_results
from reporting.test_page_browser import BROWSER, DRIVER, browser, complaints, fetched, texts, until

from fedbalancer.reporting.leaderboard import write_leaderboard
from fedbalancer.reporting.leaderboard_entries import add_comparison

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")
SHOWN = "#all tbody tr:not([hidden]) th"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaderboard")
    results = write_canter(write_results(folder / "results"))
    add_comparison(
        write_comparison(folder / "mine", methods=("fedavg+1t", "fedbalancer[w=5]"), seeds=(0, 1)), results, NASTY
    )
    return write_leaderboard(results).page


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    until(browser, "return document.getElementById('count').textContent !== ''")
    return browser


def choose(driver: Any, name: str, value: str) -> None:
    script = """const field = document.getElementById(arguments[0]); field.value = arguments[1];
        field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input'));"""
    driver.execute_script(script, f"filter-{name}", value)


def test_it_opens_from_disk_without_errors_or_network_and_names_stay_text(opened: Any, page: Path) -> None:
    assert complaints(opened) == []
    assert fetched(opened) == [page.as_uri()]
    assert opened.title == "Leaderboard: tasks × methods"
    assert opened.execute_script("return document.images.length") == 0
    assert NASTY in texts(opened, ".board tbody th")
    assert NASTY in texts(opened, ".tag")


def test_filters_filter(opened: Any) -> None:
    everything = len(texts(opened, SHOWN))
    choose(opened, "method", "FedBalancer")
    assert set(texts(opened, SHOWN)) == {"fedbalancer", f"fedbalancer[w=5] {NASTY}"}
    opened.find_element("id", "filter-grid").click()
    assert "fedbalancer[w=5,p=.75]" in texts(opened, SHOWN)
    opened.find_element("id", "filter-grid").click()
    assert len(texts(opened, SHOWN)) < everything
    assert f"{len(texts(opened, SHOWN))} entries" == texts(opened, "#count")[0]
    choose(opened, "owner", NASTY)
    assert set(texts(opened, SHOWN)) == {f"fedbalancer[w=5] {NASTY}"}
    opened.find_element("id", "clear").click()
    assert len(texts(opened, SHOWN)) == everything
    choose(opened, "task", "femnist")
    assert set(texts(opened, ".board:not([hidden]) thead th:not([hidden])")) == {"Method", "femnist"}
    choose(opened, "task", "")
    choose(opened, "item", "fig2")
    assert texts(opened, SHOWN) == ["fedavg[deadline=.5T]"]
    assert texts(opened, ".board:not([hidden])") == []
    opened.find_element("id", "clear").click()
    opened.find_element("id", "filter-resolved").click()
    assert "sampleselection" not in texts(opened, SHOWN)
    assert "fedbalancer" in texts(opened, SHOWN)
    opened.find_element("id", "filter-resolved").click()


def test_the_board_of_other_seeds_is_filtered_by_where_its_cells_come_from(opened: Any) -> None:
    names = ".board:not([hidden]) tbody tr:not([hidden]) th"
    choose(opened, "item", "canter/peers")
    assert texts(opened, ".board:not([hidden]) h2")[0].startswith("Seeds 10 to 19, not used to develop canter")
    assert set(texts(opened, names)) == {"fedbuff", NASTY}
    choose(opened, "item", "canter/held-out")
    assert "canter ours" in texts(opened, names)
    assert "fedbuff" not in texts(opened, names)
    choose(opened, "item", "table1")
    assert "canter ours" not in texts(opened, names)
    assert "fedbalancer" in texts(opened, names)
    choose(opened, "item", "own")
    assert set(texts(opened, names)) == {f"fedbalancer[w=5] {NASTY}", f"fedavg+1t {NASTY}"}
    opened.find_element("id", "clear").click()


@pytest.mark.parametrize(("board", "column"), [(0, 1), (1, 2)])
def test_columns_sort_by_their_values_and_say_so(opened: Any, board: int, column: int) -> None:
    header = opened.find_elements("css selector", ".board")[board].find_elements("css selector", "thead th")[column]
    header.find_element("tag name", "button").click()
    rows = f"[...document.querySelectorAll('.board table')[{board}].tBodies[0].rows]"
    values = f"return {rows}.map(row => row.cells[{column}].dataset.value || '')"
    down = opened.execute_script(values)
    assert header.get_attribute("aria-sort") == "descending"
    present = [float(value) for value in down if value]
    assert present == sorted(present, reverse=True)
    assert len(present) > 2
    header.find_element("tag name", "button").click()
    up = opened.execute_script(values)
    assert [float(value) for value in up if value] == present[::-1]
    assert up[-1] == down[-1] == ""  # what was not measured is last either way


def test_it_fits_a_phone_and_is_dark_where_that_is_wanted(opened: Any) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    light = opened.execute_script(background)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 390
        assert opened.execute_script(background) != light
        widths = (
            "return [...document.querySelectorAll('tr:not([hidden]) > th[scope=row]')].map(name => name.offsetWidth)"
        )
        assert all(width > 100 for width in opened.execute_script(widths))  # names are read as words
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_every_row_has_a_cell_for_every_column(opened: Any) -> None:
    script = """return [...document.querySelectorAll('table')].every(table => [...table.rows].every(row =>
        row.cells.length === table.rows[0].cells.length))"""
    assert opened.execute_script(script)


def test_every_control_has_a_name(opened: Any) -> None:
    script = """return [...document.querySelectorAll('input, select, button, a')].filter(element =>
        !(element.labels && element.labels.length) && !element.textContent.trim()).length"""
    assert opened.execute_script(script) == 0
