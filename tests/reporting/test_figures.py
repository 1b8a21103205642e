"""The figures as PNG and SVG."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedbalancer.reporting.figures import accuracy_figure, round_figure, speedup_figure, write_figures
from fedbalancer.reporting.results import load
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.reporting.series import PANELS
from fedbalancer.reporting.style import choose_looks

PNG = b"\x89PNG\r\n\x1a\n"


def test_all_figures_of_a_comparison_are_written_without_pyplot(
    comparison_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    results = load(comparison_folder)
    paths = write_figures(results, score_comparison(results), comparison_folder / "figures")
    figures = ["accuracy", "completed", "deadline", "loss_threshold", "speedup"]
    names = [f"{name}.{suffix}" for name in figures for suffix in ("png", "svg")]
    assert [path.name for path in paths] == names
    assert all(path.read_bytes().startswith(PNG) for path in paths[::2])
    assert all(b"<svg" in path.read_bytes() for path in paths[1::2])
    assert sorted(path.name for path in (comparison_folder / "figures").iterdir()) == sorted(names)


def test_lines_have_the_colours_of_their_methods_and_axes_have_units(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    axes = accuracy_figure(results, score_comparison(results)).axes[0]
    colours = {line.get_label(): line.get_color() for line in axes.lines}
    for method, look in choose_looks(results.methods).items():
        assert colours[method] == look.colour
    assert axes.get_xlabel() == "Share of the time budget"
    without_budgets = replace(results, budgets_s={})
    assert accuracy_figure(without_budgets, None).axes[0].get_xlabel() == "Simulated time (min)"
    assert "har (synthetic)" in axes.get_title(loc="left")


def test_methods_without_a_deadline_or_threshold_are_named_instead_of_drawn(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    _, deadline, threshold = (round_figure(results, panel).axes[0] for panel in PANELS if panel.figure)
    assert "No deadline: fedavg+wfa, oort" in deadline.get_xlabel()
    assert [line.get_label() for line in threshold.lines] == ["fedbalancer"]


def test_a_run_that_recorded_nothing_gives_figures_that_say_so(run_folder: Path) -> None:
    for path in run_folder.glob("*.parquet"):
        path.unlink()
    results = load(run_folder)
    assert len(write_figures(results, None, run_folder / "figures")) == 8
    assert accuracy_figure(results, None).axes[0].texts[0].get_text() == "nothing to show"


def test_a_line_far_beyond_all_seeds_ends_in_an_arrow(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    comparison = score_comparison(results)
    vars(comparison["oort"])["speedup"] = replace(comparison["oort"].speedup, std=432.0)
    axes = speedup_figure(results, comparison).axes[0]
    assert axes.get_xlim()[1] < 20
    assert [line.get_marker() for line in axes.lines].count(">") == 1
