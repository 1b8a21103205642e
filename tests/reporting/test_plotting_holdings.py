"""The picture of who has what, for any data."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from subprocess import run

import numpy as np
import pytest

from fedbalancer.data import Task, load_task
from fedbalancer.data.catalogue.summary import OTHER, LabelCounts, count_labels
from fedbalancer.reporting.plotting import MOST_BARS, MOST_NAMES, plot_holdings, write_figure


def held(clients: int, labels: int, sizes: tuple[int, int] = (1, 40), floats: bool = False) -> LabelCounts:
    rng = np.random.default_rng(0)
    data = {}
    for number in range(clients):
        size = int(rng.integers(*sizes))
        y = rng.random(size) if floats else rng.integers(0, labels, size)
        data[f"client-{number}-$x_{{"] = (np.zeros((size, 1)), y)
    return count_labels(Task(clients=data, test=(np.zeros((1, 1)), y[:1]), model=lambda: None, name="t"))


@pytest.mark.parametrize(
    "what",
    [
        held(1, 1, (1, 2)), held(3, 2), held(MOST_NAMES + 1, 11), held(300, 62), held(2, 30_000, (400, 5000)),
        held(5, 1, floats=True), held(40, 5, (1, 90_000)),
    ],
    ids=["one sample", "few", "more than names fit", "62 labels", "words", "no classes", "very unequal"],
)  # fmt: skip
def test_any_data_can_be_drawn(what: LabelCounts) -> None:
    figure = plot_holdings(what)
    figure.savefig(BytesIO(), format="png", dpi=30)
    bars = figure.axes[0]
    assert len(figure.axes) == (3 if what.labels else 2)
    bars_per_label = len(what.clients) if len(what.clients) <= MOST_NAMES else 1
    assert len(bars.patches) == bars_per_label * max(1, len(what.labels))
    assert len({patch.get_facecolor() for patch in bars.patches}) == max(1, len(what.labels)), "colours repeat"
    highest = bars.dataLim.y1
    assert highest == (what.counts.sum(axis=1).max() if what.labels else what.sizes.max())
    assert bars.get_ylim()[1] > highest


def test_every_client_and_label_is_named_where_there_is_room() -> None:
    what = count_labels(load_task("synthetic", users=6))
    figure = plot_holdings(what)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(what.clients)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(what.labels)
    many = plot_holdings(held(300, 62))
    assert not many.axes[0].get_xticklabels()
    assert many.legends[0].get_texts()[-1].get_text() == OTHER
    assert f"{MOST_BARS} of 300" in many.axes[0].get_xlabel()


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.png"):
        write_figure(plot_holdings(held(4, 3)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "deep" / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_no_display_and_no_import_before_it_is_needed() -> None:
    code = (
        "import sys, fedbalancer.reporting.plotting, fedbalancer.data.catalogue.catalog, fedbalancer.cli.data; "
        "print(*(name in sys.modules for name in ('matplotlib', 'torch')))"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
               env={"PYTHONPATH": ":".join(sys.path), "PATH": ""})  # fmt: skip
    assert done.stdout.split() == ["False", "False"]
