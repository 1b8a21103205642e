"""Examples are executed documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from runpy import run_path
from shutil import copy

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, folder: Path) -> list[str]:
    """What an example prints, started in a folder of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("example", "lines"),
    [("own_task.py", 30), ("own_arrays.py", 30), ("own_folder.py", 40), ("own_parquet.py", 40)],
)
def test_own_data_takes_few_lines_and_runs(example: str, lines: int, tmp_path: Path) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) <= lines
    assert [line.split()[0] for line in run(example, tmp_path)] == ["fedavg+1t", "fedavg+wfa", "fedbalancer"]


def test_my_task_is_a_task_of_what_own_parquet_writes(tmp_path: Path) -> None:
    writer = run_path(str(EXAMPLES / "own_parquet.py"))
    writer["recordings"]().write_parquet(tmp_path / "gestures.parquet")
    copy(EXAMPLES / "my_task.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fedbalancer", "run", "my_task.toml", "--rounds", "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 channels of 32 steps" in done.stderr
    assert "2 rounds" in done.stdout
