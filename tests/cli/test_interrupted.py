"""Ctrl-C before a command has begun: a word and code 130, whatever is being loaded; never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys

where, sys.argv = sys.argv[1], ["fedbalancer", "run", "synthetic", "--rounds", "1", "--users", "4"]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == where:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from fedbalancer.cli import main
main()
"""
PLACES = (
    "typer", "rich", "fedbalancer.cli.app", "polars", "fedbalancer.experiments.execute", "torch",
    "fedbalancer.data.tasks.synthetic",
)  # fmt: skip
"""Modules at whose import it comes."""


@pytest.mark.parametrize("where", PLACES)
def test_a_word_and_its_code(tmp_path: Path, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, where], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (130, "stopped")
