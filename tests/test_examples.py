"""Examples are executed documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_task_fits_thirty_lines_and_runs() -> None:
    path = EXAMPLES / "own_task.py"
    assert len(path.read_text().splitlines()) <= 30
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["fedavg+1t", "fedavg+wfa", "fedbalancer"]
