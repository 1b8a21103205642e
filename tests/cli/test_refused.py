"""The command refuses names that are not UTF-8, and too little memory, before any work is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedbalancer as fb
from fedbalancer.core.errors import RunFolderError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes, and memory limits hold")
COMMAND = [sys.executable, "-m", "fedbalancer"]


def refused(folder: Path, shell: list[str], *arguments: str | bytes, **environment: str) -> str:
    """The one line that a fresh process says before it ends with code 2; nothing is left in the folder."""
    done = subprocess.run(
        [*shell, *COMMAND, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=100,
        check=False,
    )  # fmt: skip
    said = done.stderr.decode(errors="backslashreplace").splitlines()
    assert (done.returncode, [line for line in said if not line.startswith("synthetic (")]) == (2, said[-1:])
    assert not list(folder.iterdir())
    return said[-1]


WORK = {
    "run": ("run", "synthetic", "--rounds", "1", "--out"),
    "compare": ("compare", "synthetic", "--rounds", "1", "--out"),
    "sweep": ("sweep", "synthetic", "--space", "w=1,2", "--out"),
    "paper": ("paper", "fig4", "--tasks", "synthetic", "--out"),
    "pool": ("paper", "fig5b", "--tasks", "synthetic", "--runs"),
    "task": ("compare",),
}


@pytest.mark.parametrize("work", WORK)
def test_a_name_that_is_not_utf8_is_refused_before_training(work: str, tmp_path: Path) -> None:
    line = refused(tmp_path, [], *WORK[work], b"caf\xff.toml")
    assert line.startswith(r"error: the name 'caf\udcff.toml' is not UTF-8; choose another name")


def test_an_accent_in_a_locale_without_one_is_refused_and_the_locale_named(tmp_path: Path) -> None:
    line = refused(tmp_path, [], *WORK["run"], "café", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert line.endswith("a UTF-8 locale, as in LC_ALL=C.UTF-8")


def test_python_refuses_the_same_names(tmp_path: Path) -> None:
    for start in (fb.run, fb.compare):
        with pytest.raises(RunFolderError, match="is not UTF-8"):
            start("synthetic", "fedavg+1t", rounds=1, out=tmp_path / os.fsdecode(b"\xff"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limit_mib", "arguments"),
    [(900, ("compare", "--jobs", "2")), (1200, ("compare", "--jobs", "2")), (1500, ("run",))],
)
def test_a_memory_limit_under_which_libraries_abort_is_refused(
    tmp_path: Path, limit_mib: int, arguments: tuple[str, ...]
) -> None:
    command, *options = arguments
    limited = ["sh", "-c", f'ulimit -v {limit_mib * 1024} && exec "$@"', "sh"]
    line = refused(tmp_path, limited, command, "synthetic", "--method", "fedavg+1t", "--rounds", "40", *options)
    assert line.startswith(f"error: a process may use only {limit_mib:,} MiB of memory here (ulimit -v), but training")
    assert line.endswith("raise the limit with: ulimit -v unlimited")
