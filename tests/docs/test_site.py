"""The site builds without a warning, all its links lead somewhere, and a reader's browser asks no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from browsing import BROWSER, DRIVER, complaints, fetched, opened, resized, started, until
from docs.built import Page, inside

pytest.importorskip("mkdocs", reason="mkdocs is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: strictly."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All but the page for addresses that do not exist, which is shown at any depth and so links from the root."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_link_within_the_site_leads_to_a_page_and_a_place_in_it(pages: dict[Path, Page]) -> None:
    broken = []
    for page in pages.values():
        for link in page.links:
            found = inside(page, link)
            if found is None:
                continue
            target, anchor = found
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{page.path.name}: {link}")
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    loads = [(page.path.name, load) for page in pages.values() for load in page.loads]
    assert loads
    assert [load for load in loads if urlsplit(load[1]).netloc] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", sheet.read_text()), sheet


def test_what_is_loaded_is_there(pages: dict[Path, Page]) -> None:
    missing = []
    for page in pages.values():
        for load in page.loads:
            found = inside(page, load)
            if found is not None and not found[0].exists():
                missing.append(f"{page.path.name}: {load}")
    assert missing == []


def test_the_reference_has_every_public_name(pages: dict[Path, Page], site: Path) -> None:
    import fedbalancer as fb

    text = (site / "reference" / "index.html").read_text()
    for name in fb.__all__:
        assert f">{name}<" in text or f".{name}" in text, name


def test_examples_of_docstrings_are_code_and_no_quotes(site: Path) -> None:
    text = (site / "reference" / "types.html").read_text()
    shown = (Path(__file__).parents[2] / "docs" / "reference" / "types.md").read_text().count("```pycon")
    assert text.count('class="language-pycon highlight"') == shown > 0
    assert "<blockquote>" not in text


def test_a_folder_that_is_linked_shows_its_files(site: Path) -> None:
    text = (site / "source" / "examples" / "own_policies" / "index.html").read_text()
    assert "expected_share.py" in text
    assert "ExpectedShare" in text


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The address of the site on this machine: from the disk a browser allows no search."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path")
def test_in_a_browser_it_fits_a_phone_asks_no_other_host_and_its_search_finds(served: str, tmp_path: Path) -> None:
    with started(tmp_path) as browser:
        for page in (
            "index.html",
            "results/table1/table1.html",
            "explanation/architecture.html",
            "tutorials/run-folder.html",
        ):
            opened(browser, f"{served}/{page}")
            for width in (1280, 390):
                resized(browser, width)
            asked = fetched(browser)
            assert len(asked) > 3
            assert [url for url in asked if not url.startswith((served, "data:"))] == []
            assert complaints(browser) == []
        opened(browser, f"{served}/index.html?q=deadline")
        until(browser, "return document.querySelectorAll('.md-search-result__item').length > 3")
