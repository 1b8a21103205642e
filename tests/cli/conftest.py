"""The command line as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `fedbalancer ARGUMENTS` in an empty folder."""

    def run(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
        return subprocess.run(
            [sys.executable, "-m", "fedbalancer", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    return run
