"""Files, settings and columns that pages name exist; the citation is the package's."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

import fedbalancer
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import METHOD_VALUES, RUN_KEYS
from fedbalancer.data.own.models import MODELS
from fedbalancer.data.own.toml import KINDS
from fedbalancer.methods.policy_registry import policy_fields
from fedbalancer.methods.table import BASES, method
from fedbalancer.store.rows import ClientRow, EvalRow, RoundRow

ROOT = Path(__file__).parents[2]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "fedbalancer"
NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+(?:\.py|/))`")


def named_files(page: str) -> list[str]:
    return sorted(set(NAMED.findall((DOCS / page).read_text())))


@pytest.mark.parametrize("page", ["explanation/architecture.md", "reference/paper-to-code.md", "reference/glossary.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    names = named_files(page)
    assert len(names) > 3
    assert [name for name in names if not ((SOURCE / name).exists() or (ROOT / name).exists())] == []


def test_the_architecture_page_names_a_file_of_every_part_that_a_round_goes_through() -> None:
    parts = {name.split("/")[0] for name in named_files("explanation/architecture.md")}
    assert {"core", "server", "client", "training", "simulation", "flower", "store", "reporting"} <= parts


def glossary(column: str) -> set[str]:
    """Return the settings or columns that the glossary names."""
    text = (DOCS / "reference" / "glossary.md").read_text()
    told = re.findall(rf"\b{column}s? ((?:`[\w.]+`(?:, )?)+)", text)
    return {name for group in told for name in re.findall(r"`([\w.]+)`", group)}


def test_settings_and_columns_of_the_glossary_are_there() -> None:
    settings, columns = glossary("setting"), glossary("column")
    assert len(settings) > 10
    assert len(columns) > 8
    assert settings <= {*RUN_KEYS, *METHOD_VALUES, *(row["key"] for row in policy_fields())}
    assert columns <= {*RoundRow._fields, *ClientRow._fields, *EvalRow._fields}


def test_the_tutorial_on_own_data_names_every_kind_of_file_and_every_model_with_its_options() -> None:
    page = (DOCS / "tutorials" / "own-data.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert {*KINDS, *MODELS} < set(rows)
    for name, options in MODELS.items():
        for option, default in options.items():
            assert f"`{option}" in rows[name]
            told = json.dumps(default)
            assert default is None or f"`{option} = {told}`" in rows[name]


def test_the_citation_names_this_version_and_the_paper() -> None:
    yaml = pytest.importorskip("yaml")
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cff["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cff)
    assert cff["version"] == fedbalancer.__version__
    assert cff["license"] == "Apache-2.0"
    page = (DOCS / "cite.md").read_text()
    assert f"version = {{{cff['version']}}}" in page
    (paper,) = cff["references"]
    assert paper["doi"] in page
    assert paper["doi"] in (ROOT / "README.md").read_text()
    for author in paper["authors"]:
        assert author["family-names"] in page


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("round_picture", ROOT / "scripts" / "docs" / "round_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_a_round_is_drawn_from_its_numbers(picture: ModuleType) -> None:
    data = json.loads(picture.DATA.read_text())
    assert picture.WIDE.read_text() == picture.wide(data), "run: python scripts/docs/round_picture.py"
    assert picture.PAGE.read_text() == picture.page(data), "run: python scripts/docs/round_picture.py"
    words = " ".join(ET.fromstring(picture.wide(data)).itertext())
    for number in (f"round {data['round']}", f"{data['deadline_s']:.1f} s", f"{data['loss_threshold']:.3f}"):
        assert number in words


def test_the_picture_can_be_drawn_of_any_run(picture: ModuleType, tmp_path: Path) -> None:
    small = {"clients_per_round": 3, "eval_every": 1}
    fedbalancer.run("synthetic", method="fedbalancer", rounds=3, users=8, settings=small, out=tmp_path / "run")
    facts = picture.facts(tmp_path / "run", 2)
    assert len(facts["clients"]) == facts["selected"] == 3
    assert len(facts["everybody"]) == 8
    ET.fromstring(picture.wide(facts))


REFUSED = {"fedavg", "prox", "fedavg+1t-samples"}
"""Names of which a page says that they are refused."""


def test_every_method_that_a_page_names_can_be_taken() -> None:
    bases = "|".join(sorted(map(re.escape, {*BASES, *REFUSED}), key=len, reverse=True))
    named = re.compile(rf"`((?:{bases})(?:[+-](?!folder)[a-z0-9]+)*)`")
    found = {
        (name, path.name)
        for path in [*DOCS.rglob("*.md"), ROOT / "README.md"]
        for name in named.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 100
    for name, page in sorted(found):
        if name in REFUSED:
            with pytest.raises(BadSetting):
                method(name)
        else:
            assert method(name).name == name, page
