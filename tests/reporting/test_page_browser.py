"""The page in a real browser: opened from disk it draws, answers, complains about nothing, and fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import BROWSER, DRIVER, complaints, fetched, opened, pointed, resized, started, texts, until
from reporting.full import complete
from reporting.pages import write_page

METHODS = ("fedavg+1t", "fedavg+wfa", "prox+1t", "fedbalancer", "x<svg onload=alert(1)>")
LONG = tuple(f"fedbalancer[w=2,deadline=slackdl:MedianSlack(slack={slack})]" for slack in (2, 5))

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def comparison(browser: Any, tmp_path_factory: pytest.TempPathFactory, make_comparison: Callable[..., Path]) -> Path:
    """The page of a comparison, open in the browser."""
    page = write_page(make_comparison(tmp_path_factory.mktemp("pages") / "comparison", methods=METHODS, seeds=(0, 1)))
    opened(browser, page.as_uri())
    return page


def test_a_comparison_draws_from_disk_without_errors_or_network(browser: Any, comparison: Path) -> None:
    assert len(texts(browser, ".chart")) == len(texts(browser, ".chart svg")) == 10
    urls = fetched(browser)
    assert comparison.as_uri() in urls
    assert [url for url in urls if not url.startswith(("file://", "data:"))] == []
    assert complaints(browser) == []


def test_names_are_text_whatever_they_are(browser: Any, comparison: Path) -> None:
    assert texts(browser, "#scores tbody th") == list(METHODS)
    assert texts(browser, ".legend button") == list(METHODS)
    assert METHODS[-1] in texts(browser, "#chart-outcomes .name")
    assert METHODS[-1] in pointed(browser, "#chart-accuracy")
    assert texts(browser, "[onload]") == []


def test_pointing_at_a_chart_shows_the_values_there(browser: Any, comparison: Path) -> None:
    said = pointed(browser, "#chart-accuracy", x=0.5)
    assert said.startswith("share of the time budget: 0.")
    assert "fedbalancer" in said
    assert pointed(browser, "#chart-accuracy", x=0.9) != said
    assert "completed" in pointed(browser, "#chart-outcomes", y=0.2)


def test_a_mouse_shows_values_and_takes_them_away(browser: Any, comparison: Path) -> None:
    from selenium.webdriver import ActionChains

    chart = browser.find_element("id", "chart-accuracy")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    until(browser, "return document.querySelector('.tip').hidden")
    ActionChains(browser).move_to_element(chart).perform()
    until(browser, "return !document.querySelector('.tip').hidden")
    inside = (
        "const t = document.querySelector('.tip').getBoundingClientRect(); return t.left >= 0 && t.right <= innerWidth"
    )
    assert browser.execute_script(inside)
    ActionChains(browser).move_to_element(browser.find_element("css selector", ".hint")).perform()
    until(browser, "return document.querySelector('.tip').hidden")


def test_a_drag_zooms_in_and_a_double_click_goes_back(browser: Any, comparison: Path) -> None:
    from selenium.webdriver import ActionChains

    chart = browser.find_element("id", "chart-deadline")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ticks = texts(browser, "#chart-deadline text")
    mouse = ActionChains(browser).move_to_element(chart).click_and_hold().move_by_offset(90, 0).release()
    mouse.perform()
    until(browser, "return page.zoom.size === 1")
    assert texts(browser, "#chart-deadline text") != ticks
    ActionChains(browser).double_click(browser.find_element("id", "chart-deadline")).perform()
    until(browser, "return page.zoom.size === 0")
    assert texts(browser, "#chart-deadline text") == ticks


def test_the_arrow_keys_read_a_chart_aloud(browser: Any, comparison: Path) -> None:
    chart = browser.find_element("id", "chart-deadline")
    chart.send_keys("\ue014\ue014")  # arrow right, twice
    (said,) = texts(browser, ".unseen[aria-live]")
    assert said.startswith("round: ")
    assert "fedbalancer" in said


def test_the_x_axis_can_be_switched(browser: Any, comparison: Path) -> None:
    choose = "const s = document.querySelector('select.axis'); s.value = '%s'; s.dispatchEvent(new Event('change'))"
    offered = browser.execute_script("return [...document.querySelector('select.axis').options].map(o => o.value)")
    assert offered == ["share", "time", "rounds"]  # these runs recorded neither bytes nor device seconds
    for key, label in {"time": "simulated time (min)", "rounds": "rounds", "share": "share of the time budget"}.items():
        browser.execute_script(choose % key)
        assert label in texts(browser, "#chart-accuracy .axis")
        assert pointed(browser, "#chart-accuracy").startswith(label)


def test_the_legend_hides_a_method_in_every_chart(browser: Any, comparison: Path) -> None:
    here = "return document.querySelectorAll(\".chart .series[data-m='3']\").length"
    shown, press = browser.execute_script(here), "document.querySelectorAll('.legend button')[3].click()"
    assert shown >= 7
    browser.execute_script(press)
    assert browser.execute_script(here) == 0
    assert "fedbalancer" not in pointed(browser, "#chart-accuracy")
    browser.execute_script(press)
    assert browser.execute_script(here) == shown


def test_behind_a_chart_is_a_table_of_its_numbers(browser: Any, comparison: Path) -> None:
    browser.execute_script("document.getElementById('numbers-accuracy').open = true")
    until(browser, "return document.querySelectorAll('#numbers-accuracy tbody tr').length === 11")
    assert texts(browser, "#numbers-accuracy thead th")[1:] == list(METHODS)
    assert all(
        float(cell.split()[0]) > 0 for cell in texts(browser, "#numbers-accuracy tbody tr:last-child td:last-child")
    )


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_sticks_out_of_the_screen(browser: Any, comparison: Path, width: int) -> None:
    resized(browser, width)
    assert len(texts(browser, ".chart svg")) == 10


def test_the_charts_follow_a_dark_page_and_paper_is_light(browser: Any, comparison: Path) -> None:
    stroke = "return getComputedStyle(document.querySelector('#chart-accuracy .line')).stroke"
    seen = []
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        seen.append(browser.execute_script(stroke))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]


@pytest.fixture(scope="module")
def long_names(browser: Any, tmp_path_factory: pytest.TempPathFactory, make_comparison: Callable[..., Path]) -> Path:
    """A page of variants with long names, of which one arrives at very different times; open in the browser."""
    folder = make_comparison(tmp_path_factory.mktemp("pages") / "long", methods=("fedavg+1t", "prox+1t", *LONG))
    for run in folder.glob("*/seed-*"):
        complete(run)
    for seed, seconds in enumerate((5.0, 9_000.0, 700.0)):
        path = folder / LONG[0] / f"seed-{seed}" / "evals.parquet"
        pl.DataFrame({
            "round": [1, 99], "start_s": [0.0, 9_999.0], "clock_s": [seconds, 10_000.0], "accuracy": [0.99, 0.99],
            "loss": [0.1, 0.1],
        }).write_parquet(path)  # fmt: skip
    manifest = json.loads((folder / "comparison.json").read_text())
    spec = {"task": "har", "method": "fedbalancer", "settings": {}}
    (folder / "comparison.json").write_text(json.dumps(manifest | {"spec": spec, "rule": "paper"}))
    page = write_page(folder)
    opened(browser, page.as_uri())
    resized(browser, 1280)
    return page


def test_long_names_of_variants_stay_whole_in_bar_charts(browser: Any, long_names: Path) -> None:
    resized(browser, 1280)
    for chart in ("speedup", "outcomes"):
        names = texts(browser, f"#chart-{chart} .name")
        assert all(name in names for name in LONG)
    rows = [name.replace(" ", "") for name in texts(browser, "#chart-times .name")]
    assert all(f"{name}·{device}" in rows for name in LONG for device in ("slow", "mid", "fast"))
    inside = """return [...document.querySelectorAll('.chart')].every(chart => {
        const edge = chart.getBoundingClientRect();
        return [...chart.querySelectorAll('.name')].every(name => {
            const at = name.getBoundingClientRect(); return at.left >= edge.left - 1 && at.right <= edge.right + 1;
        });
    })"""
    assert browser.execute_script(inside)


def test_a_wide_interval_ends_in_an_arrow_and_leaves_room_for_the_rest(browser: Any, long_names: Path) -> None:
    assert len(texts(browser, "#chart-speedup .range.arrow")) >= 1
    apart = """const at = [...document.querySelectorAll('#chart-speedup .mean')].map(mean => +mean.getAttribute('x1'));
        return Math.max(...at) - Math.min(...at)"""
    assert browser.execute_script(apart) > 20


def test_classes_are_dots_with_no_line_between_them(browser: Any, long_names: Path) -> None:
    assert len(texts(browser, "#chart-classes .dot")) >= 9
    assert texts(browser, "#chart-classes path.line") == []


@pytest.mark.parametrize("width", [1280, 390, 360])
def test_with_long_names_the_page_does_not_scroll_and_the_scores_are_seen(
    browser: Any, long_names: Path, width: int
) -> None:
    resized(browser, width)
    seen = """const edge = document.querySelector('#scores').closest('.scroll').getBoundingClientRect();
        return [...document.querySelectorAll('#scores tbody tr')].map(row => [...row.children].filter(
            cell => cell.getBoundingClientRect().right <= edge.right + 1).length)"""
    assert min(browser.execute_script(seen)) == 5
    until(
        browser,
        """return [...document.querySelectorAll('.scroll')].every(place => place.closest('details:not([open])') ||
            place.classList.contains('more') === place.scrollWidth > place.clientWidth + 1)""",
    )
    assert browser.execute_script("const p = document.querySelector('pre'); return p.scrollWidth <= p.clientWidth")


def test_a_single_run_draws_too(browser: Any, run_folder: Path) -> None:
    opened(browser, write_page(run_folder).as_uri())
    assert len(texts(browser, ".chart svg")) >= 6
    assert texts(browser, "#scores") == []
    assert complaints(browser) == []
