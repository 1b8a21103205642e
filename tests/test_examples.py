"""Examples are executed documentation."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from runpy import run_path
from shutil import copy

import commands
import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from fedbalancer.testing import check_policy

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, folder: Path, *options: str) -> list[str]:
    """Return the output of an example that runs in its own folder."""
    done = commands.run_script(folder, EXAMPLES / example, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("example", "lines"),
    [("own_task.py", 30), ("own_arrays.py", 30), ("own_folder.py", 40), ("own_parquet.py", 40)],
)
def test_own_data_takes_few_lines_and_runs(example: str, lines: int, tmp_path: Path) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) <= lines
    assert [line.split()[0] for line in run(example, tmp_path)] == ["fedavg+1t", "fedavg+wfa", "fedbalancer"]


def test_lora_sends_its_adapters_only(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    (line,) = run("lora_bert.py", tmp_path, "--clients", "3", "--rounds", "2")
    assert line.startswith("26,596 parameters, 1,090 trained, 4,360 bytes to a client")
    saved = load_file(tmp_path / "runs" / "lora-bert" / "model.safetensors")
    assert sum(values.size for values in saved.values()) == 1090
    assert (tmp_path / "runs" / "lora-bert" / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("real", [False, True])
def test_a_resnet_trains_on_synthetic_images_and_on_files_of_cifar(real: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        rows = rng.integers(0, 256, (30, 1 + 3072), dtype=np.uint8)
        rows[:, 0] %= 10
        rows.tofile(tmp_path / name)
    data = ("--data", str(tmp_path)) if real else ("--images", "60")
    (line,) = run("resnet_cifar.py", tmp_path, *data, "--clients", "2", "--width", "4", "--rounds", "1")
    assert line.startswith("44,622 parameters; 1 rounds")


def test_model_data_fleet_method_metric_and_tests_of_ones_own_fit_one_short_script(tmp_path: Path) -> None:
    for package in ("datasets", "flwr_datasets", "peft", "transformers"):
        pytest.importorskip(package)
    assert len((EXAMPLES / "bring_your_own.py").read_text().splitlines()) < 120
    lines = run("bring_your_own.py", tmp_path, "--authors", "5", "--rounds", "2")
    number = r"(\d+\.\d+|nan)"
    for line, method in zip(lines, ("fedavg+wfa", "fedbalancer[w=2]", "own-scaffold"), strict=True):
        pattern = rf"{re.escape(method)}: 2 rounds, \d+ s, F1 {number}, worst tenth of authors {number}"
        assert re.fullmatch(pattern, line), line
    assert (tmp_path / "fleet.csv").read_text().count("author-") == 5


@pytest.mark.soak
def test_a_tiny_bert_needs_adamw(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    *others, adamw = [float(line.split()[-1]) for line in run("adamw_bert.py", tmp_path)]
    assert len(others) == 4
    assert max(others) < 0.7
    assert adamw > 0.95


def test_my_task_is_a_task_of_what_own_parquet_writes(tmp_path: Path) -> None:
    writer = run_path(str(EXAMPLES / "own_parquet.py"))
    writer["recordings"]().write_parquet(tmp_path / "gestures.parquet")
    copy(EXAMPLES / "my_task.toml", tmp_path)
    done = commands.run(tmp_path, "run", "my_task.toml", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert "2 channels of 32 steps" in done.stderr
    assert "2 rounds" in done.stdout


def test_a_package_outside_the_source_tree_adds_two_policies_named_in_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = EXAMPLES / "own_policies"
    for source in (package / "mypolicies").glob("*.py"):
        assert len(source.read_text().splitlines()) <= 40
    out = tmp_path / "run"
    command = ("run", "synthetic", "--config", str(package / "fedbalancer.toml"), "--seed", "1", "--out", str(out))
    done = commands.run(tmp_path, *command, PYTHONPATH=str(package))
    assert done.returncode == 0, done.stderr
    rounds = pl.read_parquet(out / "rounds.parquet")
    assert rounds.height == 5
    assert rounds["deadline_s"].n_unique() == 5  # a deadline for every cohort, which the fixed one would not give
    assert rounds["samples"][-1] < rounds["samples"][0]
    monkeypatch.syspath_prepend(str(package))
    expected_share = importlib.import_module("mypolicies.expected_share").ExpectedShare
    without_extremes = importlib.import_module("mypolicies.without_extremes").WithoutExtremes
    assert check_policy(expected_share()) == "deadline"
    assert check_policy(without_extremes()) == "samples"


def test_a_package_that_is_not_on_the_path_is_named(tmp_path: Path) -> None:
    config = EXAMPLES / "own_policies" / "fedbalancer.toml"
    done = commands.run(tmp_path, "run", "synthetic", "--config", str(config), "--out", "r")
    assert done.returncode == 2
    assert "mypolicies" in done.stderr
    assert "PYTHONPATH" in done.stderr
