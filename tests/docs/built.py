"""Parsed pages of the site: anchors, links, and what a browser would load."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("object", "data")}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "modulepreload", "manifest"}


@dataclass
class Page(HTMLParser):
    """One page of the site."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loads += [given[name] for kind, name in LOADED if kind == tag and name in given]
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])

    def __hash__(self) -> int:
        return hash(self.path)


def inside(page: Page, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link within the site leads to; None for a link that leaves it."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)
