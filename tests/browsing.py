"""A real browser, and what tests ask of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DRAWN = "return [...document.querySelectorAll('.chart')].every(chart => chart.querySelector('svg'))"


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A browser that keeps its logs."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def opened(browser: Any, address: str) -> None:
    """Open a page and wait until all its charts are drawn."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # which forgets it
    browser.get(address)
    until(browser, DRAWN)


def until(browser: Any, script: str) -> None:
    """Wait until a script returns true, for a browser answers to changes in its own time."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: browser.execute_script(script), message=script)


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    return list(browser.execute_script(script, selector))


def pointed(browser: Any, selector: str, x: float = 0.5, y: float = 0.5) -> str:
    """Return the text that the page shows for a position in an element, from 0 to 1 in both directions."""
    script = """
        const box = document.querySelector(arguments[0]), edge = box.getBoundingClientRect();
        const at = {clientX: edge.left + edge.width * arguments[1], clientY: edge.top + edge.height * arguments[2]};
        box.dispatchEvent(new PointerEvent("pointermove", {...at, bubbles: true}));
        return document.querySelector(".tip").hidden ? "" : document.querySelector(".tip").innerText;"""
    return str(browser.execute_script(script, selector, x, y))


def resized(browser: Any, width: int) -> None:
    """Give the page this width, and wait until nothing sticks out of it."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    until(browser, f"return innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
    until(browser, "return [...document.querySelectorAll('.chart')].every(c => c.scrollWidth <= c.clientWidth)")


def fetched(browser: Any) -> list[str]:
    """Return the requests of the page, without those of the browser's start page."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent if not request["documentURL"].startswith("chrome://")]


def complaints(browser: Any) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
