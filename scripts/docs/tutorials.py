"""Tutorials are Markdown that runs: the same source is the page, the test and the notebook.

Of the fenced blocks of a page, `python` ones share one namespace, `sh` ones run in a shell, and a block with
`title="path"` is written to that file, whatever its language. A `text` block is what the block before it prints.

    python scripts/docs/tutorials.py run docs/tutorials/own-data.md FOLDER     # runs all blocks in a folder
    python scripts/docs/tutorials.py write docs/tutorials/own-data.md          # the same, and puts in what was printed
    python scripts/docs/tutorials.py notebooks                                 # docs/tutorials/*.ipynb
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
EXTRAS = {
    "bring-your-model": "torch,data,metrics",
    "cluster": "torch,demo,ray",
    "fleet": "torch,flower,telemetry",
    "from-flower": "torch,demo,flower",
    "private-run": "torch,demo,privacy",
}
"""Extras that a notebook installs on Colab, by page."""
FURTHER = {"bring-your-model": ("peft", "transformers")}
"""Packages that it installs besides."""
INSTALL = """# Google Colab: install the package. Elsewhere this cell does nothing.
import subprocess, sys

if "google.colab" in sys.modules:  # or the path of a wheel, or 'fedbalancer[...] @ git+URL'
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "fedbalancer[{extras}]"{more}])
"""
FENCE = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the file that it is written to, and where it stands in the page."""

    kind: str
    text: str
    title: str | None
    span: tuple[int, int]

    @property
    def runs(self) -> bool:
        return self.title is None and self.kind in ("python", "sh")


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(found["kind"], found["text"], found["title"], found.span()) for found in FENCE.finditer(page)]


def printed(page: str) -> Iterator[tuple[Block, Block]]:
    """Each block that runs, with the one after it that says what it prints."""
    found = blocks(page)
    for block, after in pairwise(found):
        if block.runs and after.kind == "text" and after.title is None:
            yield block, after


def run(page: str, folder: Path) -> dict[Block, str]:
    """Run all blocks of a page in a folder; what each of them printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    said: dict[Block, str] = {}
    with contextlib.chdir(folder):
        sys.path.insert(0, str(folder))  # as in a notebook: modules of the folder are found
        for block in blocks(page):
            if block.title is not None:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text)
            elif block.kind == "python":
                said[block] = _python(block.text, names)
            elif block.kind == "sh":
                said[block] = _shell(block.text)
    return said


def rewritten(page: str, said: dict[Block, str]) -> str:
    """The page with what was printed now."""
    for block, after in reversed(list(printed(page))):
        start, end = after.span
        page = f"{page[:start]}```text\n{said[block].rstrip()}\n```{page[end:]}"
    return page


def notebook(page: str, name: str) -> str:
    """The page as a notebook: what runs are cells, and files are written by cells. The first one installs on Colab."""
    more = "".join(f', "{package}"' for package in FURTHER.get(name, ()))
    install = INSTALL.format(extras=EXTRAS.get(name, "torch,demo"), more=more)
    cells, last = [_cell("code", install)], 0
    for block in blocks(page):
        if block.kind == "text" and block.title is None:
            cells.append(_cell("markdown", page[last : block.span[0]]))
        elif block.title is not None or block.runs:
            cells.append(_cell("markdown", page[last : block.span[0]]))
            cells.append(_cell("code", _typed(block)))
        else:
            continue
        last = block.span[1]
    cells.append(_cell("markdown", page[last:]))
    kept = [cell for cell in cells if cell["source"]]
    for number, cell in enumerate(kept):
        cell["id"] = f"{name}-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": kept, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def pages() -> list[Path]:
    """All tutorials; their list is none."""
    return sorted(path for path in TUTORIALS.glob("*.md") if path.name != "index.md")


def notebook_pages() -> list[Path]:
    """All pages that are notebooks too: the tutorials, and the guide to models."""
    return [*pages(), TUTORIALS.parent / "how-to" / "bring-your-model.md"]


def write_notebooks() -> None:
    """One beside each page."""
    for path in notebook_pages():
        path.with_suffix(".ipynb").write_text(notebook(path.read_text(), path.stem))


def _python(text: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "<tutorial>", "exec"), names)
    return out.getvalue()


def _shell(text: str) -> str:
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env={**os.environ, "PATH": here, "COLUMNS": "100"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{text}ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _typed(block: Block) -> str:
    if block.title is not None:
        return f"%%writefile {block.title}\n{block.text}"
    return block.text if block.kind == "python" else f"%%bash\n{block.text}"


def _cell(kind: str, text: str) -> dict[str, Any]:
    source = text.strip("\n").splitlines(keepends=True)
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": "", "metadata": {}, "source": source, **code}


def main() -> None:
    """Run a page, run it and keep what it prints, or write all notebooks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "write", "notebooks"])
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    if given.verb == "notebooks":
        write_notebooks()
        return
    page = given.page.read_text()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = given.folder if given.folder is not None else Path(scratch)
        said = run(page, folder.resolve())
    if given.verb == "write":
        given.page.write_text(rewritten(page, said))
    else:
        print(json.dumps([said[block] for block, _ in printed(page)]))


if __name__ == "__main__":
    main()
