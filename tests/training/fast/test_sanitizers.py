"""The kernels under AddressSanitizer and UBSan: no call reads or writes outside of what it was given. A few random
calls here; `make soak` makes thousands, with vectors of every width."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="layers need the extra [torch]")

CALLS = Path(__file__).with_name("random_calls.py")
SANITIZERS = "-g -w -fsanitize=address,undefined -fno-sanitize-recover=all"


def _library() -> str | None:
    """AddressSanitizer's own library, which must be the first that a process loads."""
    if sys.platform != "linux" or not shutil.which("gcc"):
        return None
    asked = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = Path(asked.stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


ASAN = _library()
pytestmark = pytest.mark.skipif(ASAN is None, reason="needs gcc with AddressSanitizer, on Linux")


def watched(folder: Path, flags: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`random_calls.py` with kernels compiled with these flags, which come after our own."""
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" {SANITIZERS} {flags}\n')
    compiler.chmod(0o755)
    environment = os.environ | {
        "CC": str(compiler), "FEDBALANCER_CACHE": str(folder), "FEDBALANCER_KERNELS": "on", "LD_PRELOAD": str(ASAN),
        "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip
    command = [sys.executable, str(CALLS), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)


def test_a_few_random_calls_stay_in_their_memory_and_one_that_does_not_is_seen(tmp_path: Path) -> None:
    done = watched(tmp_path, "-O0", "1", "8", "overrun")
    assert done.stdout == "done\n", done.stderr[:4000]
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("flags", ["", "-DLANES=4 -DROWS=6", "-DLANES=16 -DTILE=12 -DROWS=12"])
def test_thousands_of_random_calls_stay_in_their_memory(flags: str, tmp_path: Path) -> None:
    for seed in range(3):
        done = watched(tmp_path, f"-O1 {flags}", str(seed), "200")
        assert (done.returncode, done.stdout) == (0, "done\n"), f"seed {seed}: {done.stderr[:4000]}"
