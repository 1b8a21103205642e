"""The scripts for SLURM, run by a scheduler that does one task after another, make the comparison of one machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.test_addition import contents

import fedbalancer as fb
from fedbalancer.store import ComparisonFile

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"
SBATCH = """#!/bin/bash
# sbatch of one machine: reads --array from the command line or the script, and runs its tasks at once.
set -eu
script=${@: -1}
array=$(printf '%s\\n' "$@" "$(cat "$script")" | sed -n 's/^\\(#SBATCH \\)\\?--array=//p' | head -1)
echo "$@" >> submitted
for task in $(seq ${array/-/ }); do
    SLURM_SUBMIT_DIR=$PWD SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=1 bash "$script" >> out.log 2>&1
done
[ -n "$array" ] || SLURM_SUBMIT_DIR=$PWD bash "$script" >> out.log 2>&1
echo 7
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The scripts in a folder of their own, with a scheduler on the path."""
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    return tmp_path / "slurm"


def submit(folder: Path, *arguments: str) -> None:
    path = os.pathsep.join([str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ, "PATH": path, "TASK": "synthetic", "METHODS": "fedavg+1t,fedavg+wfa",
        "OPTIONS": "--users 8 --rounds 3 --extend 1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "submit.sh", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    log = folder / "out.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")


@pytest.mark.soak
def test_an_array_of_seeds_is_merged_into_the_comparison_of_one_machine(cluster: Path, tmp_path: Path) -> None:
    submit(cluster, "--array=0-1")
    assert (cluster / "submitted").read_text().splitlines() == [
        "--parsable --array=0-1 seed.sbatch", "--dependency=afterok:7 merge.sbatch",
    ]  # fmt: skip
    check_merged(cluster / "runs" / "array", tmp_path / "one", 2)


@pytest.mark.soak
def test_a_task_that_was_killed_continues_and_further_seeds_are_merged_with_the_first(
    cluster: Path, tmp_path: Path
) -> None:
    submit(cluster, "--array=0-1")
    runs = cluster / "runs" / "array"
    shutil.rmtree(runs / "seed-0" / "fedavg+wfa" / "seed-0")
    submit(cluster, "--array=0-2")
    check_merged(runs, tmp_path / "one", 3)


def check_merged(runs: Path, one: Path, seeds: int) -> None:
    """Compare the merged folder with a comparison at once."""
    fb.compare("synthetic", ["fedavg+1t", "fedavg+wfa"], seeds, users=8, rounds=3, extend=1, jobs=1, workers=1, out=one)
    assert contents(runs / "merged") == contents(one)
    assert ComparisonFile.read(runs / "merged") == ComparisonFile.read(one)
    assert (runs / "merged" / "report.html").is_file()
