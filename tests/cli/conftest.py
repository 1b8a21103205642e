"""The command line as a real process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import commands
import pytest

Cli = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `fedbalancer ARGUMENTS` in an empty folder."""

    def run(*arguments: str, timeout: float = 240) -> CompletedProcess[str]:
        return commands.run(tmp_path, *arguments, timeout_s=timeout, COLUMNS="160", NO_COLOR="1", TERM="dumb")

    return run
