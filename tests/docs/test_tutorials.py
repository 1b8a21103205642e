"""Tutorials run as they stand, print what they say, and are the notebooks beside them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from commands import run_script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "docs" / "tutorials.py"
TUTORIALS = ROOT / "docs" / "tutorials"
LONG = ("cluster", "fleet", "from-flower")  # real nodes and processes: minutes
QUICK = ("own-data", "own-policy", "scaffold", "heterofl", "personal", "private-run", "run-folder")
PATIENCE_S = 840  # each takes seconds; the machine may have other work


@pytest.fixture(scope="module")
def tutorials() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorials", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorials"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def shape(output: str) -> list[str]:
    """Return the output without numbers and without table frames, whose widths depend on them."""
    bare = re.sub(r"[─-╿┆]|-{3}", " ", output)
    return re.sub(r"-?\d[\d.,]*", "#", bare).split()


def check(path: Path, tutorials: ModuleType, folder: Path, timeout_s: float) -> None:
    done = run_script(folder, SCRIPT, "run", str(path), str(folder), timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    promised = [after.text for _, after in tutorials.printed(path.read_text())]
    assert promised
    assert all(text.strip() for text in promised), "run: python scripts/docs/tutorials.py write PAGE"
    assert [shape(text) for text in said] == [shape(text) for text in promised]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUICK)
def test_a_tutorial_runs_and_prints_what_its_page_says(name: str, tutorials: ModuleType, tmp_path: Path) -> None:
    check(TUTORIALS / f"{name}.md", tutorials, tmp_path, PATIENCE_S)


@pytest.mark.timeout(900)
def test_the_quick_start_runs(tutorials: ModuleType, tmp_path: Path) -> None:
    check(ROOT / "docs" / "quickstart.md", tutorials, tmp_path, PATIENCE_S)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LONG)
def test_a_tutorial_with_real_processes_runs(name: str, tutorials: ModuleType, tmp_path: Path) -> None:
    try:
        check(TUTORIALS / f"{name}.md", tutorials, tmp_path, 1700)
    finally:  # nodes that a page which failed on the way has not ended itself
        for kept in tmp_path.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(kept.read_text()), signal.SIGTERM)


def test_every_tutorial_is_run_by_one_of_these(tutorials: ModuleType) -> None:
    assert sorted((*LONG, *QUICK)) == [path.stem for path in tutorials.pages()]


def test_notebooks_are_made_of_the_pages(tutorials: ModuleType) -> None:
    for path in tutorials.notebook_pages():
        made = tutorials.notebook(path.read_text(), path.stem)
        assert path.with_suffix(".ipynb").read_text() == made, "run: python scripts/docs/tutorials.py notebooks"


def test_every_block_that_runs_is_a_cell_of_the_notebook(tutorials: ModuleType) -> None:
    for path in tutorials.notebook_pages():
        content = json.loads(path.with_suffix(".ipynb").read_text())
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        cells = content["cells"]
        assert len({cell["id"] for cell in cells}) == len(cells)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"]) for cell in cells)
        install, *code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert "google.colab" in install
        blocks = [block for block in tutorials.blocks(path.read_text()) if block.runs or block.title]
        assert len(code) == len(blocks)
        for text, block in zip(code, blocks, strict=True):
            assert block.text.strip() in text
            if not text.startswith("%%"):
                ast.parse(text)


def test_the_first_cell_installs_on_colab_and_does_nothing_elsewhere(
    tutorials: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "check_call", commands.append)
    cell = "".join(json.loads(tutorials.notebook("# A page\n", "private-run"))["cells"][0]["source"])
    exec(cell, {})
    assert commands == []
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    exec(cell, {})
    assert commands == [[sys.executable, "-m", "pip", "install", "-q", "fedbalancer[torch,demo,privacy]"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in tutorials.EXTRAS.values():
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_what_is_not_a_number_must_stay(tutorials: ModuleType) -> None:
    assert shape("round 3: accuracy 0.91") == shape("round 12: accuracy 0.5")
    assert shape("│ completed ┆ 106 │") == shape("│ completed ┆ 9   │")
    assert shape("round 3: accuracy 0.91") != shape("round 3: loss 0.91")


def test_a_block_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho before && false\n```\n")
    done = run_script(tmp_path, SCRIPT, "run", str(page), str(tmp_path))
    assert done.returncode == 1
    assert "before" in done.stderr
