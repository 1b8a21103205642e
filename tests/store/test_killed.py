"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL and fork are POSIX")

RESULTS = ("rounds.parquet", "evals.parquet", "clients.parquet", "model.safetensors")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def command(path: Path, rounds: int, *more: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("tiny_run.py")), str(path), str(rounds), *more]


def drive(path: Path, rounds: int, kill_after_s: float | None = None) -> tuple[int, float]:
    """Start or resume the run, and kill it that long after its work began; exit code and seconds of work."""
    with subprocess.Popen(command(path, rounds), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began_s = time.perf_counter()
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            process.kill()
        return process.wait(), time.perf_counter() - began_s


def results(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in RESULTS}


def test_ten_kills_at_random_moments(memory_path: Path) -> None:
    rounds, moments = 150, random.Random(1)
    code, work_s = drive(memory_path / "calm", rounds)
    assert code == 0
    codes = [drive(memory_path / "killed", rounds, moments.uniform(0, work_s / 8))[0] for _ in range(10)]
    assert codes.count(-9) >= 5
    assert set(codes) <= {-9, 0}
    assert drive(memory_path / "killed", rounds)[0] == 0
    assert results(memory_path / "killed") == results(memory_path / "calm")
    assert json.loads((memory_path / "killed" / "manifest.json").read_bytes())["status"] == "done"
    assert not [file for file in (memory_path / "killed").rglob("*") if "tmp" in file.name]


def test_a_kill_before_every_operation_on_files(memory_path: Path) -> None:
    """Three rounds make checkpoints appear, be kept and be removed."""
    done = subprocess.run(
        command(memory_path, 3, "every"), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong"] == [], done.stderr
    assert seen["kills"] > 40
