"""The section of methods without tuning on the page of the benchmark, from runs that can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedbalancer.reporting import benchmark_page
from fedbalancer.reporting.benchmark import DEFAULT, UNTUNED, Board, load_board
from fedbalancer.reporting.benchmark_page import markdown, terminal_rows

METHODS = ("fedavg+1t", "oort", "canter", "canter+late")
TIMES = {
    "a": {"fedavg+1t": 80, "oort": 80, "canter": 40, "canter+late": 20, "canter[p=.8]": 10},
    "b": {"fedavg+1t": 80, "oort": 80, "canter": 80, "canter+late": 80},
}
"""Seconds to the target by cell."""


def run(cell: str, method: str, seconds: float, seed: int) -> dict[str, Any]:
    """A run that has 90% of the target after ten seconds, and all of it after more."""
    return {
        "suite": "s", "cell": cell, "owner": "", "method": method, "seed": seed, "status": "done", "data": "d",
        "at_s": [0.0, 10.0, float(seconds)], "level": [0.0, 0.9 if seconds > 10 else 1.0, 1.0], "end_s": 100.0,
        "budget_s": 100.0, "final": 1.0, "worst_decile": 0.5, "device_s": [0.0, 1.0, 2.0],
        "down_bytes": [0.0, 1.0, 2.0], "up_bytes": [0.0, 1.0, 2.0], "processor": "p", "variant": "v",
    }  # fmt: skip


def make_board(folder: Path, untuned: list[str], times: dict[str, dict[str, int]] = TIMES) -> Board:
    """The results of two cells, read from their files."""
    runs = [run(cell, *each, seed) for cell, own in times.items() for each in own.items() for seed in (0, 1)]
    trial = {"suite": "s", "owner": "", "number": 0, "chosen": True}
    trials = [{**trial, "cell": cell, "method": name, "trial": name} for cell in TIMES for name in METHODS]
    protocol = {
        "suite": "s", "trials": 1, "tuning_seeds": [9], "seeds": [0, 1], "extend": 1.0, "targets": [1.0, 0.95, 0.9],
        "gifts": "+gifts", "cells": [{"name": cell, "title": cell} for cell in TIMES], "untuned": untuned,
    }  # fmt: skip
    pl.DataFrame(runs).write_parquet(folder / "runs.parquet")
    pl.DataFrame(trials).write_parquet(folder / "trials.parquet")
    (folder / "protocol.json").write_text(json.dumps(protocol))
    return load_board(folder)


def section(board: Board) -> list[str]:
    """The rows of the section's two tables."""
    text = markdown(board).partition("## Not tuned")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|:")]


def test_a_method_without_tuning_is_listed_after_the_defaults_of_its_base_on_its_cells(tmp_path: Path) -> None:
    overall = section(make_board(tmp_path, ["canter[p=.8]"]))[:4]
    assert [line.split(" | ")[0] for line in overall] == [
        "| method", "| `canter` default", "| `canter+late` default", "| `canter[p=.8]`",
    ]  # fmt: skip
    assert [line.split(" | ")[1] for line in overall] == ["cells", "1", "1", "1"]
    assert [line.split(" | ")[2].split()[0] for line in overall] == ["100%", "2.00", "4.00", "8.00"]
    assert [line.split(" | ")[4].split()[0] for line in overall] == ["90%", "1.00", "1.00", "1.00"]
    assert overall[3].endswith("| 1.000 |")


def test_the_second_table_has_the_cells_of_these_methods_at_95_percent(tmp_path: Path) -> None:
    board = make_board(tmp_path, ["canter[p=.8]"])
    (head, row) = section(board)[4:]
    assert head == "| method | a |"
    assert row.startswith("| `canter[p=.8]` | 8.00 ")
    assert "at 95% of the target" in markdown(board)


def test_names_without_runs_have_no_section(tmp_path: Path) -> None:
    board = make_board(tmp_path, ["canter[p=.7]"])
    assert not [entry for entry in board.entries if entry.column == UNTUNED]
    assert "## Not tuned" not in markdown(board)


def test_entries_without_tuning_are_in_the_terminal_and_the_plain_values(tmp_path: Path) -> None:
    board = make_board(tmp_path, ["canter[p=.8]"])
    assert ["a", "canter[p=.8]", UNTUNED] in [row[:3] for row in terminal_rows(board)]
    assert board.to_json()["cells"]["a"]["canter[p=.8], untuned"]["speedup"]["1"]["mean"] == pytest.approx(8)
    assert board.find("a", "canter[p=.8]", DEFAULT) is None
    assert "canter[p=.8]" not in board.methods


def test_the_answer_has_our_untuned_method_once_with_or_without_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_page, "UNTUNED_OURS", "canter[p=.8]")
    head = next(
        line for line in markdown(make_board(tmp_path, ["canter[p=.8]"])).splitlines() if "| best tuned peer |" in line
    )
    assert head.endswith(" | tuned `canter` over it | default `canter` over it | untuned `canter[p=.8]` over it |")
    head = next(
        line for line in markdown(make_board(tmp_path, ["canter"])).splitlines() if "| best tuned peer |" in line
    )
    assert head.endswith(" | tuned `canter` over it | untuned `canter` over it |")


def test_only_methods_that_ran_in_all_cells_are_in_the_figure_of_the_profile(tmp_path: Path) -> None:
    times = {"a": TIMES["a"], "b": {method: 80 for method in METHODS if method != "oort"}}
    board = make_board(tmp_path, [], times)
    figure = benchmark_page.plot_profile(board, 1.0)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"fedavg+1t", "canter", "canter+late"}
    table = markdown(board).partition("| tuned method |")[2]
    assert table.index("`canter`") < table.index("`oort`")
