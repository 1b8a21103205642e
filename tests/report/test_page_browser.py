"""The page in a real browser: opened from disk it draws, complains about nothing, and fetches nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report.pages import write_page

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

METHODS = ("fedavg+1t", "fedavg+wfa", "prox+1t", "fedbalancer", "x<svg onload=alert(1)>")

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def comparison(browser: Any, tmp_path_factory: pytest.TempPathFactory, make_comparison: Callable[..., Path]) -> Path:
    """The page of a comparison, open in the browser."""
    page = write_page(make_comparison(tmp_path_factory.mktemp("pages") / "comparison", methods=METHODS, seeds=(0, 1)))
    opened(browser, page)
    return page


def opened(browser: Any, page: Path) -> None:
    """Open a page and wait until all its charts are drawn."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # which forgets it
    browser.get(page.as_uri())
    drawn = "return [...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
    until(browser, drawn)


def until(browser: Any, script: str) -> None:
    """Wait until a script returns true, for a browser answers to changes in its own time."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: browser.execute_script(script), message=script)


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    return list(browser.execute_script(script, selector))


def fetched(browser: Any) -> list[str]:
    """What the page asked for; the browser's own start page does not count."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent if not request["documentURL"].startswith("chrome://")]


def complaints(browser: Any) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_a_comparison_draws_from_disk_without_errors_or_network(browser: Any, comparison: Path) -> None:
    assert len(texts(browser, ".chart")) == 6
    assert len(texts(browser, ".chart .main-svg")) >= 6
    urls = fetched(browser)
    assert comparison.as_uri() in urls
    assert [url for url in urls if not url.startswith(("file://", "data:"))] == []
    assert complaints(browser) == []


def test_the_table_and_the_legend_have_the_methods_whatever_they_are_called(browser: Any, comparison: Path) -> None:
    assert texts(browser, "#scores tbody th") == list(METHODS)
    assert texts(browser, ".legend button") == list(METHODS)
    assert texts(browser, ".chart image, body > img, th svg[onload]") == []


def test_the_legend_hides_a_method_in_every_chart(browser: Any, comparison: Path) -> None:
    shown = (
        "return [...document.querySelectorAll('.chart')].flatMap(c => c.data)"
        ".filter(t => t.meta === 'fedbalancer').map(t => t.visible !== false)"
    )
    before = browser.execute_script(shown)
    browser.execute_script("document.querySelector('.legend button[data-method=fedbalancer]').click()")
    assert len(before) >= 4
    assert all(before)
    assert not any(browser.execute_script(shown))


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_of_the_screen(browser: Any, comparison: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    until(browser, f"return innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
    until(browser, "return [...document.querySelectorAll('.chart')].every(c => c.scrollWidth <= c.clientWidth)")


def test_the_charts_follow_a_dark_page(browser: Any, comparison: Path) -> None:
    colour = "document.getElementById('chart-accuracy').layout.font.color"
    light = browser.execute_script(f"return {colour}")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    until(browser, f"return {colour} !== '{light}'")


def test_a_single_run_draws_too(browser: Any, run_folder: Path) -> None:
    opened(browser, write_page(run_folder))
    assert len(texts(browser, ".chart .main-svg")) >= 5
    assert texts(browser, "#scores") == []
    assert complaints(browser) == []
