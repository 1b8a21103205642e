"""The documented commands of an export, in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_INDEX = ("No matching distribution", "Could not find a version", "Temporary failure in name resolution")


def documented(start: str) -> str:
    """The first command of docs/how-to/devices.md that starts like this, without its comment."""
    page = (ROOT / "docs" / "how-to" / "devices.md").read_text("utf-8")
    return next(line.split("  #")[0].strip() for line in page.splitlines() if line.strip().startswith(start))


@pytest.mark.soak
def test_the_documented_export_works_in_a_fresh_environment_also_beside_triton(tmp_path: Path) -> None:
    """A CUDA build of torch brings triton along, which aborts a process that has loaded TensorFlow."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = kept | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def shell(command: str, folder: Path) -> str:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
        if command.startswith("pip") and done.returncode and any(words in done.stderr for words in NO_INDEX):
            pytest.skip(f"no package index has what this needs: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    shell(documented("pip install -c constraints.txt -e '.[export]'"), ROOT)
    export = documented("fedbalancer export synthetic")
    assert re.search(r"synthetic\.tflite: [\d,]+ bytes", shell(export, tmp_path))
    exported = (tmp_path / "synthetic.tflite").read_bytes()
    shell("pip install triton", tmp_path)
    (tmp_path / "synthetic.tflite").unlink()
    shell(export, tmp_path)
    assert (tmp_path / "synthetic.tflite").read_bytes() == exported
