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


def test_the_shapes_have_the_published_users_and_samples(tmp_path: Path) -> None:
    shown = ran(str(FOLDER / "paper_shape.py"), "sizes", cwd=tmp_path)
    for numbers in ("| femnist | 712 | 157,132 |", "| celeba | 915 | 19,923 |", "| reddit | 813 | 32,680 |"):
        assert numbers in shown


SMALL_SHAPE = """
import sys
from dataclasses import replace
from pathlib import Path
import paper_shape as script

small = replace(script.SHAPES["reddit"], users=30, samples=600, most=200)
small = replace(small, settings={**small.settings, "clients_per_round": 5, "rounds": 4})
compared = script.Compared("reddit", "rows", script.PUBLISHED, small, ("fedavg+1t", "fedbalancer"))
assert sum(small.make().sizes.values()) < 400  # 60% of every user train
if __name__ == "__main__":
    compared.run((0,), Path("runs"))
    compared.run((0,), Path("runs"))  # nothing is left to do
    sys.argv = ["paper_shape.py", "tables", "--runs=runs", "--out=out"]
    script.main()
"""


def test_a_shape_runs_and_its_tables_are_written(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL_SHAPE)
    shown = ran("small.py", cwd=tmp_path)
    assert "| fedbalancer |" in shown
    rows = (tmp_path / "out" / "seeds.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 3  # a header; two methods with three shares of the target
