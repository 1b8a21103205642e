"""Kernels in C, compiled on the user's machine at first use, for its processor.

A compiled kernel is kept in the cache folder under the checksum of all that it depends on: its source, the flags, the
compiler and what the processor can do (both as the compiler's own macros tell it). It is written whole, so that many
processes may make it at once, with its checksum beside it: a damaged one is made again. Only its owner can read or
write folder and files, and one that others could have written is not loaded but made again. Where nothing can be
compiled everything else works, with torch's operations; but all processes of a run hold to one decision, as sums end in
other digits there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fedbalancer.core.errors import BadSetting, FedBalancerError
from fedbalancer.core.files import cache_folder, write_bytes

SWITCH = "FEDBALANCER_KERNELS"
"""The environment variable that switches the kernels off."""

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NATIVE = ("-march=native", "-mcpu=native")
"""How compilers are told to use all of this processor: the first that this one takes."""

TIMEOUT_S = 120
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
SUFFIX = ".dll" if sys.platform == "win32" else ".so"


class NoKernel(Exception):
    """Why there is no kernel."""


def load(name: str) -> ctypes.CDLL | None:
    """The library compiled from `<name>.c` beside this file; None if there can be none, see `why_not`."""
    return _found(name)[0]


def why_not(name: str) -> str | None:
    """One line on why `load(name)` gives None; None if it gives a library."""
    return _found(name)[1]


def decision() -> dict[str, str | None]:
    """For every kernel why this process has none (None: it has), for all other processes of a run to hold to."""
    names = [source.stem for source in sorted(Path(__file__).parent.glob("*.c"))]
    with ThreadPoolExecutor() as threads:  # compilers are processes of their own
        return dict(zip(names, threads.map(why_not, names), strict=True))


def hold_to(decided: Mapping[str, str | None] | None) -> None:
    """Do without the kernels that the first process of a run has not, and insist on those that it has."""
    _held.clear()
    _held.update(decided or {})


def known(name: str) -> str | None:
    """Why there is no kernel, as far as the processes of this run have found out; nothing is compiled to tell."""
    return _held.get(name) or _tried.get(name, (None, None))[1]


_held: dict[str, str | None] = {}
_tried: dict[str, tuple[ctypes.CDLL | None, str | None]] = {}


def _found(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    if _held.get(name) is not None:
        return None, _held[name]
    library, why = _own(name)
    if library is None and name in _held:
        raise FedBalancerError(
            f"the process that started this run has the kernel {name}, but this one cannot have it ({why}), and torch "
            f"would end in other digits; try again, or set {SWITCH}=off for all"
        )
    return library, why


def _own(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    if name not in _tried:
        try:
            _tried[name] = _library(Path(__file__).with_name(f"{name}.c")), None
        except NoKernel as error:
            _tried[name] = None, str(error)
    return _tried[name]


def _library(source: Path) -> ctypes.CDLL:
    path = place(source)
    if all(map(_only_ours, (path.parent, path, _seal(path)))) and _is_whole(path):
        with suppress(NoKernel):  # a damaged file is made again
            return _opened(path)
    with TemporaryDirectory(prefix="fedbalancer-", ignore_cleanup_errors=True) as folder:
        made = Path(folder) / f"{source.stem}{SUFFIX}"
        _run([*compiler()[0], "-o", str(made), str(source), "-lm"])
        try:
            _make_private_folder(path.parent)
            write_bytes(path, made.read_bytes(), 0o600)
            write_bytes(_seal(path), _digest(made).encode("ascii"), 0o600)
        except OSError:  # a cache that cannot be written, or not by us alone: made again by every process
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


def _make_private_folder(folder: Path) -> None:
    """Make the folder, or take everybody else's permissions from one that is ours."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _only_ours(folder):
        folder.chmod(0o700)  # raises an OSError if it belongs to somebody else


def _only_ours(path: Path) -> bool:
    """Whether only this user, or root, can have written the file or folder: other users' code is not run."""
    try:
        found = path.stat()
    except OSError:
        return False
    return sys.platform == "win32" or (found.st_uid in (0, os.getuid()) and not found.st_mode & OTHERS_MAY_WRITE)


def _is_whole(path: Path) -> bool:
    """Whether the file is what the compiler made: to load one that was cut off may end the process."""
    try:
        return _seal(path).read_text(encoding="ascii", errors="replace") == _digest(path)
    except OSError:
        return False


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernel(f"the compiled kernel cannot be loaded: {error}") from error
