"""The scripts of benchmarks/ begin, whatever became of the package since they were written; the quick ones also end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

FOLDER = Path(__file__).parents[3] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
LOADED = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path, run_name='loaded')\n    print(path)\n"

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="benchmarks is part of a checkout only")


def ran(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *command], check=False, cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_finds_what_it_imports(tmp_path: Path) -> None:
    paths = [str(FOLDER / name) for name in SCRIPTS]
    assert ran("-c", LOADED, *paths, cwd=tmp_path).split() == paths


def test_the_cost_of_a_population_is_measured_and_drawn(tmp_path: Path) -> None:
    told = ran(str(FOLDER / "scale.py"), "--most=3000", "--repeats=1", "--plot=scale.png", "--json", cwd=tmp_path)
    rows = json.loads(told)["rows"]
    assert {(row["method"], row["clients"]) for row in rows} == {
        (method, count) for method in ("fedavg+1t", "fedbalancer") for count in (1000, 3000)
    }
    assert (tmp_path / "scale.png").stat().st_size > 10_000
