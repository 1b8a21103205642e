"""Kernels in C, compiled on the user's machine at first use, for its processor.

A compiled kernel is kept in the cache folder under the checksum of all that it depends on: its source, the flags, the
compiler and what the processor can do (both as the compiler's own macros tell it). It is written whole, so that many
processes may make it at once. Where nothing can be compiled everything else works, with torch's operations.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fedbalancer.errors import BadSetting
from fedbalancer.files import write_bytes
from fedbalancer.places import cache_folder

SWITCH = "FEDBALANCER_KERNELS"
"""The environment variable that switches the kernels off."""

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NATIVE = ("-march=native", "-mcpu=native")
"""How compilers are told to use all of this processor: the first that this one takes."""

TIMEOUT_S = 120
SUFFIX = ".dll" if sys.platform == "win32" else ".so"


class NoKernel(Exception):
    """Why there is no kernel."""


def load(name: str) -> ctypes.CDLL | None:
    """The library compiled from `<name>.c` beside this file; None if there can be none, see `why_not`."""
    return _found(name)[0]


def why_not(name: str) -> str | None:
    """One line on why `load(name)` gives None; None if it gives a library."""
    return _found(name)[1]


@cache
def _found(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    try:
        return _library(Path(__file__).with_name(f"{name}.c")), None
    except NoKernel as error:
        return None, str(error)


def _library(source: Path) -> ctypes.CDLL:
    path = place(source)
    if _is_ours(path):
        with suppress(NoKernel):  # a damaged file is made again
            return _opened(path)
    with TemporaryDirectory(prefix="fedbalancer-", ignore_cleanup_errors=True) as folder:
        made = Path(folder) / f"{source.stem}{SUFFIX}"
        _run([*compiler()[0], "-o", str(made), str(source), "-lm"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, made.read_bytes())
        except OSError:  # a cache that cannot be written: made again by every process
            path = made
        return _opened(path)


def place(source: Path) -> Path:
    """Where the library that is compiled from this file is kept, whether it is there yet or not."""
    if not _switched_on():
        raise NoKernel(f"switched off by {SWITCH}")
    command, macros = compiler()
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    parts = (source.read_bytes(), *headers, "\0".join(command).encode(), macros)
    digest = hashlib.sha256(b"\0\0".join(parts)).hexdigest()[:24]
    return cache_folder() / "kernels" / f"{source.stem}-{digest}{SUFFIX}"


def _switched_on() -> bool:
    value = os.environ.get(SWITCH, "on")
    if value not in ("", "on", "off"):
        raise BadSetting(f"{SWITCH} is {value!r}; it must be on or off")
    return value != "off"


@cache
def compiler() -> tuple[list[str], bytes]:
    """The compiler's command with flags that it takes, and its macros: its version, and what the processor can do."""
    given = shlex.split(os.environ.get("CC", ""))
    named = [given] if given else [["cc"], ["gcc"], ["clang"]]
    found = next((command for command in named if shutil.which(command[0])), None)
    if found is None:
        raise NoKernel(f"no C compiler: {', '.join(command[0] for command in named)} not found")
    problem = ""
    for native in (*([flag] for flag in NATIVE), []):
        command = [*found, *FLAGS, *native]
        try:
            return command, _run([*command, "-dM", "-E", "-x", "c", os.devnull])
        except NoKernel as error:
            problem = problem or str(error)
    raise NoKernel(problem)


def _run(command: list[str]) -> bytes:
    """Standard output of a command of the compiler."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernel(f"the C compiler cannot be run: {error}") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoKernel(f"{command[0]} failed with code {done.returncode}: {words[0] if words else 'no message'}")
    return done.stdout


def _is_ours(path: Path) -> bool:
    """Whether there is a file that this user, or the system's, has made: others' code is not run."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return False
    return sys.platform == "win32" or owner in (0, os.getuid())


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernel(f"the compiled kernel cannot be loaded: {error}") from error
