"""The page is whole, safe and honest. What a browser makes of it is in test_page_browser.py."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reporting.pages import write_page

from fedbalancer.reporting.charts import encode_charts, make_charts
from fedbalancer.reporting.page import page_html
from fedbalancer.reporting.results import load
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.reporting.style import choose_looks

VOID = {"meta", "link", "line"}


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


class Balance(HTMLParser):
    """Collects what is opened and not closed, and every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.data += data

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag


def test_the_page_is_well_formed_and_refers_to_nothing_outside(comparison_folder: Path) -> None:
    page = write_page(comparison_folder).read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.loads == ["data:,"]
    assert '<html lang="en">' in page
    assert "default-src 'none'" in page


def test_everything_from_files_is_escaped(comparison_folder: Path) -> None:
    content = json.loads((comparison_folder / "comparison.json").read_text())
    content |= {"task": "<img src=x onerror=alert(1)>", "methods": [*content["methods"], "</script><b>bad"]}
    (comparison_folder / "comparison.json").write_text(json.dumps(content))
    page = write_page(comparison_folder).read_text(encoding="utf-8")
    text = without_scripts(page)
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "<b>bad" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert len(re.findall(r"</script>", page)) == 2


HOSTILE = (
    "</script><b>bad", "<img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "{{ 7 * 191 }}", "{% raw %}",
    "' autofocus onfocus=alert(1) '", "</style><b>bad", "a&lt;b",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_wherever_it_stands(
    tmp_path: Path, name: str, make_comparison: Callable[..., Path]
) -> None:
    """As task, variant, scale, method, status, reason, setting and version: the tags are those of a harmless name."""
    tags = []
    for word in ("harmless", name):
        folder = make_comparison(tmp_path / str(len(tags)), methods=("fedavg+1t", "oort"), seeds=(0,))
        manifest = json.loads((folder / "oort" / "seed-0" / "manifest.json").read_text())
        content = json.loads((folder / "comparison.json").read_text())
        shutil.copytree(folder / "oort" / "seed-0", folder / word / "seed-0")
        (folder / "oort" / "seed-0" / "manifest.json").write_text(
            json.dumps({**manifest, "status": word, "why": word, "settings": {word: word}, "versions": {word: word}})
        )
        content |= {"task": word, "variant": word, "scale": word, "methods": [*content["methods"], word]}
        (folder / "comparison.json").write_text(json.dumps(content))
        parser = Balance()
        page = write_page(folder).read_text(encoding="utf-8")
        parser.feed(without_scripts(page))
        assert parser.open == []
        assert parser.loads == ["data:,"]
        assert len(re.findall(r"</script>", page)) == 2
        assert parser.data.count(word) >= 8
        tags.append(parser.tags)
    assert tags[0] == tags[1]


def test_failures_statuses_settings_and_provenance_are_there(comparison_folder: Path) -> None:
    text = without_scripts(write_page(comparison_folder).read_text(encoding="utf-8"))
    assert "1 of 15 runs are not done" in text
    assert "prox+1t, seed 2: failed (loss is nan" in text
    assert text.count('class="status done"') == 14
    assert "pace.window" in text
    assert "Settings that differ" in text
    for needed in ("fedbalancer 0.1.0", "2024-05-01 12:00:00", "small", "synthetic"):
        assert needed in text
    assert text.count('scope="row"') >= 5 + 15


def test_every_chart_is_there_and_is_strict_json(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    drawn = make_charts(results, score_comparison(results))
    assert [chart.name for chart in drawn] == [
        "accuracy", "speedup", "targets", "outcomes", "completed", "dropped", "deadline", "deadline-ratio",
        "threshold", "selections",
    ]  # fmt: skip
    data = json.loads(encode_charts(drawn, choose_looks(results.methods)))
    assert [method["name"] for method in data["methods"]] == list(results.methods)
    assert [chart["kind"] for chart in data["charts"]] == ["lines", "bars", "lines", "bars", *["lines"] * 6]


def test_a_single_run_has_curves_and_no_scores(run_folder: Path) -> None:
    text = write_page(run_folder).read_text(encoding="utf-8")
    assert "fedbalancer on har, seed 3, ended at an accuracy of" in text
    assert 'id="chart-accuracy"' in text
    assert 'id="chart-speedup"' not in text
    assert '<table id="scores">' not in text


def test_a_comparison_of_which_nothing_ran_makes_a_page(tmp_path: Path) -> None:
    content = {"task": "har", "variant": "", "methods": ["fedavg+1t"], "seeds": [0], "rounds": 5, "budgets_s": {}}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    results = load(tmp_path)
    page = page_html(results, score_comparison(results))
    assert "Nothing can be scored yet" in page
    assert "No run has recorded a round yet" in page
    assert "missing (no manifest.json)" in page
