"""Pages from templates: one environment, one style and one script for every page of ours, so that a chart or a table
is read in the same way wherever it stands. A page is one file: it opens from disk and fetches nothing."""

from __future__ import annotations

from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedbalancer.report.style import accuracy_text, seconds


def rendered(template: str, **said: Any) -> str:
    """A page from the text of its template, which may take what is in `parts.html`; what it is given is escaped."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, loader=FunctionLoader(text_of)
    )
    environment.filters |= {"seconds": seconds, "accuracy": accuracy_text}
    script = text_of("charts.js") + text_of("page.js").replace('"use strict";\n', "", 1)
    return environment.from_string(template).render(said, css=Markup(text_of("page.css")), js=Markup(script))


def text_of(name: str, package: str = "fedbalancer.report") -> str:
    """A file that lies beside the code."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
