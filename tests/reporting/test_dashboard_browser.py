"""The live page in a real browser: it moves while a run advances, and keeps what its reader chose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSER, DRIVER, complaints, opened, pointed, resized, started, texts, until
from reporting.journals import add_round, begun
from reporting.test_dashboard_server import serving

HOSTILE = "x<svg onload=alert(1)>"

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def headline(part: str) -> str:
    return f"return document.querySelector('.headline').textContent.includes('{part}')"


def test_the_page_moves_with_the_run_and_survives_its_restart(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        opened(browser, server.address)
        until(browser, headline("There is no folder"))
        with begun(tmp_path / "run") as folder:
            add_round(folder, 1, 0.25)
            add_round(folder, 2, 0.5)
            until(browser, headline("50.0% after 2 rounds"))
            until(browser, "return document.querySelectorAll('.chart svg').length > 4")
            assert "0.5" in pointed(browser, "#chart-accuracy", x=0.99)
            browser.execute_script("document.getElementById('settings').open = true")
            choose = "const s = document.querySelector('select.axis'); s.value = 'rounds'; "
            browser.execute_script(choose + "s.dispatchEvent(new Event('change'))")
            add_round(folder, 3, 0.75)
            until(browser, headline("75.0% after 3 rounds"))
            assert "0.75" in pointed(browser, "#chart-accuracy", x=0.99)
            assert browser.execute_script("return document.querySelector('select.axis').value") == "rounds"
            assert browser.execute_script("return document.getElementById('settings').open")
        with begun(tmp_path / "run", overwrite=True) as folder:
            add_round(folder, 1, 0.125)
            until(browser, headline("12.5% after 1 rounds"))
        assert complaints(browser) == []


def test_a_hidden_method_stays_hidden_and_names_stay_text(browser: Any, tmp_path: Path) -> None:
    methods = ["fedavg+1t", HOSTILE]
    content = {"task": HOSTILE, "methods": methods, "seeds": [0], "budgets_s": {"0": 100.0}}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with serving(tmp_path) as server:
        folders = [begun(tmp_path / method / "seed-0", method) for method in methods]
        for number in (1, 2):
            for folder in folders:
                add_round(folder, number, 0.5)
        opened(browser, server.address)
        browser.execute_script("document.querySelectorAll('.legend button')[0].click()")
        for folder in folders:
            add_round(folder, 3, 0.875)
        until(browser, "return [...document.querySelectorAll('#runs td')].some(cell => cell.textContent === '0.875')")
        pressed = "return [...document.querySelectorAll('.legend button')].map(b => b.getAttribute('aria-pressed'))"
        assert browser.execute_script(pressed) == ["false", "true"]
        assert "fedavg+1t" not in pointed(browser, "#chart-accuracy")
        assert HOSTILE in pointed(browser, "#chart-accuracy")
        assert texts(browser, ".legend button") == methods
        assert texts(browser, "[onload]") == []
        resized(browser, 375)
        for folder in folders:
            folder.close()
    until(browser, "return document.getElementById('live').textContent.includes('no connection')")
