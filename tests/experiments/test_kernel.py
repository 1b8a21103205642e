"""In a real notebook kernel: progress is one widget where there is ipywidgets, else lines; results show themselves."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

HIDDEN = "import sys; sys.modules['ipywidgets'] = None"
RUN = """
import fedbalancer as fb
from experiments import tinytask
result = fb.run(tinytask.load(), "fedavg+1t", rounds=4, seed=3, on_round=lambda row: print("round", row["round"]))
result
"""
CHATTY = """
import time
import fedbalancer as fb
from experiments import tinytask

def say(row):
    for line in range(150):
        print("line", row["round"], line)
        time.sleep(.004)

fb.run(tinytask.load(), "fedavg+1t", rounds=3, on_round=say)
"""
COMPARE = """
table = fb.compare(tinytask.load(), ["fedavg+1t", "fedavg+wfa"], seeds=1, jobs=1, rounds=2, extend=1.0)
table
"""


def executed(folder: Path, *cells: str) -> Any:
    """A notebook with these cells, run from beginning to end by this very Python."""
    spec = folder / "kernels" / "here"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "here", "language": "python"}))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    client = nbclient.NotebookClient(book, timeout=240, kernel_name="here", resources={"metadata": {"path": folder}})
    return client.execute(env={**os.environ, "PYTHONPATH": path})


def text_of(outputs: list[Any]) -> str:
    """All that a reader sees as text."""
    shown = (out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in outputs)
    return "\n".join(shown)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for kernels, notebook and settings that are nobody else's."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


def test_bars_are_one_widget_that_ends_at_the_end(kernels: Path) -> None:
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    book = executed(kernels, RUN, COMPARE)
    first, second = (cell.outputs for cell in book.cells)
    for outputs in (first, second):
        views = [out for out in outputs if "application/vnd.jupyter.widget-view+json" in out.get("data", {})]
        assert len(views) == 1
        assert "warn" not in text_of(outputs).lower()
    states = book.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    bars = [text_of(state["state"]["outputs"]) for state in states if "outputs" in state["state"]]
    assert any("fedavg+1t seed 3" in bar and "round 4" in bar for bar in bars), bars
    assert any("all runs" in bar and "2 of 2 done" in bar for bar in bars), bars
    assert [line for line in text_of(first).splitlines() if line.startswith("round ")] == [
        "round 1", "round 2", "round 3", "round 4",
    ]  # fmt: skip
    assert "<th>method</th><td>fedavg+1t</td>" in first[-1].data["text/html"]
    assert "<td>fedavg+wfa</td>" in second[-1].data["text/html"]


def test_no_line_that_a_cell_prints_is_lost_in_the_bars(kernels: Path) -> None:
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    printed = text_of(executed(kernels, CHATTY).cells[0].outputs).splitlines()
    assert [line for line in printed if line.startswith("line ")] == [
        f"line {r} {k}" for r in (1, 2, 3) for k in range(150)
    ]


def test_without_ipywidgets_it_is_lines(kernels: Path) -> None:
    outputs = executed(kernels, HIDDEN, RUN).cells[1].outputs
    assert not [out for out in outputs if "application/vnd.jupyter.widget-view+json" in out.get("data", {})]
    text = text_of(outputs)
    assert "fedavg+1t seed 3: 50%, round 2" in text
    assert "fedavg+1t seed 3: 100%, round 4" in text
    assert "install" not in text
