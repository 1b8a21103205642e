"""The commands on a page do what they say: they parse, and give the same spec."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbalancer.reporting.page import list_commands
from fedbalancer.reporting.results import load

SPEC = {
    "task": "har", "method": "fedbalancer[w=5,p=.75]", "seed": 3, "scale": "paper", "users": None, "variant": None,
    "settings": {"w": 5}, "rounds": None, "budget_s": 1200.0, "backend": "plain", "device": "cpu",
}  # fmt: skip


def with_spec(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "spec": {**SPEC, **changes}}))


def test_a_run_says_how_to_run_it_again(run_folder: Path) -> None:
    with_spec(run_folder)
    first, second = list_commands(load(run_folder))
    assert shlex.split(first) == [
        "fedbalancer", "run", "har", "--method", "fedbalancer[w=5,p=.75]", "--seed", "3", "--budget", "1200",
        "--scale", "paper", "--backend", "plain", "--set", "w=5", "--out", str(run_folder),
    ]  # fmt: skip
    assert shlex.split(second) == ["fedbalancer", "report", str(run_folder)]


def test_a_comparison_says_how_to_run_it_again(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    folder = make_comparison(tmp_path / "c", methods=("fedavg+1t", "fedbalancer[w=5,p=.75]"), seeds=(0, 1))
    path = folder / "comparison.json"
    spec = {**SPEC, "settings": {"rounds": 50}, "scale": "small", "backend": "fast"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "spec": spec, "rule": "paper"}))
    first, _ = list_commands(load(folder))
    expected = "fedbalancer compare har --methods 'fedavg+1t,fedbalancer[w=5,p=.75]' --seeds 2 --rule paper --rounds 50"
    assert shlex.split(first) == [*shlex.split(expected), "--out", str(folder)]


def test_a_folder_is_called_as_from_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_comparison: Callable[..., Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_comparison(tmp_path / "runs" / "mine", methods=("fedavg+1t",), seeds=(0,))
    for given in (Path("runs/mine"), tmp_path / "runs" / "mine"):
        assert list(list_commands(load(given))) == ["fedbalancer report runs/mine"]
    monkeypatch.chdir(tmp_path / "runs" / "mine")
    assert list(list_commands(load(Path()))) == ["fedbalancer report ."]


def test_a_task_of_ones_own_has_no_command(run_folder: Path) -> None:
    with_spec(run_folder, task=None)
    assert list(list_commands(load(run_folder))) == [shlex.join(["fedbalancer", "report", str(run_folder)])]
