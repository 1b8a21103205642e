"""Kernels in C, which are compiled on the user's machine at first use, and what a result depends on besides its seed.

A compiled kernel is cached under the checksum of its source, the flags, the compiler and the processor's features (both
from the compiler's macros). It is written atomically, so that many processes may compile it at once. A checksum beside
it detects damage. Folder and files belong to the user alone; a kernel that other users could have written is compiled
again. Where nothing can be compiled, torch's operations are used. All processes of a run share that decision, because
torch's sums end in other digits.

Compilers and torch choose instructions by the processor, and sums in another order end in other digits. The same seed
therefore gives the same bytes only on equal processors with equal kernels; the manifest of a run names both.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
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
"""Environment variable that turns the kernels off."""

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NATIVE = ("-march=native", "-mcpu=native")
"""Compiler flags that use all features of this processor; the first that the compiler accepts is used."""

TIMEOUT_S = 120
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
SUFFIX = ".dll" if sys.platform == "win32" else ".so"


class NoKernel(Exception):
    """There is no kernel; the message says why."""


def load(name: str) -> ctypes.CDLL | None:
    """Load a kernel, compiling it if necessary.

    Args:
        name: Name of the C file beside this module, without its suffix.

    Returns:
        The library; None if there is none, see `why_not`.
    """
    return _find(name)[0]


def why_not(name: str) -> str | None:
    """Return in one line why `load(name)` returns None; None if it returns a library."""
    return _find(name)[1]


def decide() -> dict[str, str | None]:
    """Decide for all processes of a run which kernels they use.

    Returns:
        For every kernel, why this process has none; None if it has.
    """
    names = [source.stem for source in sorted(Path(__file__).parent.glob("*.c"))]
    with ThreadPoolExecutor() as threads:  # compilers run in parallel
        return dict(zip(names, threads.map(why_not, names), strict=True))


def follow(decision: Mapping[str, str | None] | None) -> None:
    """Use exactly the kernels of the process that started the run.

    Args:
        decision: What `decide` returned there; None: decide here.
    """
    _decided.clear()
    _decided.update(decision or {})


def known_problem(name: str) -> str | None:
    """Return why there is no kernel, as far as this run knows; nothing is compiled for the answer."""
    return _decided.get(name) or _tried.get(name, (None, None))[1]


_decided: dict[str, str | None] = {}
_tried: dict[str, tuple[ctypes.CDLL | None, str | None]] = {}


def _find(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    if _decided.get(name) is not None:
        return None, _decided[name]
    library, why = _try(name)
    if library is None and name in _decided:
        raise FedBalancerError(
            f"the process that started this run has the kernel {name}, but this one cannot have it ({why}), and torch "
            f"would end in other digits; try again, or set {SWITCH}=off for all"
        )
    return library, why


def _try(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    if name not in _tried:
        try:
            _tried[name] = _make_library(Path(__file__).with_name(f"{name}.c")), None
        except NoKernel as error:
            _tried[name] = None, str(error)
    return _tried[name]


def _make_library(source: Path) -> ctypes.CDLL:
    path = library_path(source)
    if all(map(_is_only_ours, (path.parent, path, _seal(path)))) and _is_whole(path):
        with suppress(NoKernel):  # a damaged file is compiled again
            return _open(path)
    with TemporaryDirectory(prefix="fedbalancer-", ignore_cleanup_errors=True) as folder:
        compiled = Path(folder) / f"{source.stem}{SUFFIX}"
        _run([*find_compiler()[0], "-o", str(compiled), str(source), "-lm"])
        try:
            _make_private_folder(path.parent)
            write_bytes(path, compiled.read_bytes(), 0o600)
            write_bytes(_seal(path), _digest(compiled).encode("ascii"), 0o600)
        except OSError:  # the cache cannot be written, or not by us alone: every process compiles
            path = compiled
        return _open(path)


def library_path(source: Path) -> Path:
    """Return the path of the library compiled from this file, whether it exists or not.

    Raises:
        NoKernel: If kernels are turned off or there is no compiler.
    """
    if not _is_switched_on():
        raise NoKernel(f"switched off by {SWITCH}")
    command, macros = find_compiler()
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    parts = (source.read_bytes(), *headers, "\0".join(command).encode(), macros)
    digest = hashlib.sha256(b"\0\0".join(parts)).hexdigest()[:24]
    return cache_folder() / "kernels" / f"{source.stem}-{digest}{SUFFIX}"


def _is_switched_on() -> bool:
    value = os.environ.get(SWITCH, "on")
    if value not in ("", "on", "off"):
        raise BadSetting(f"{SWITCH} is {value!r}; it must be on or off")
    return value != "off"


@cache
def find_compiler() -> tuple[list[str], bytes]:
    """Find the C compiler.

    Returns:
        Its command with flags that it accepts, and its macros, which name its version and the processor's features.

    Raises:
        NoKernel: If there is none that works.
    """
    configured = shlex.split(os.environ.get("CC", ""))
    candidates = [configured] if configured else [["cc"], ["gcc"], ["clang"]]
    present = next((command for command in candidates if shutil.which(command[0])), None)
    if present is None:
        raise NoKernel(f"no C compiler: {', '.join(command[0] for command in candidates)} not found")
    problem = ""
    for native in (*([flag] for flag in NATIVE), []):
        command = [*present, *FLAGS, *native]
        try:
            return command, _run([*command, "-dM", "-E", "-x", "c", os.devnull])
        except NoKernel as error:
            problem = problem or str(error)
    raise NoKernel(problem)


def _run(command: list[str]) -> bytes:
    """Run the compiler and return its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernel(f"the C compiler cannot be run: {error}") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoKernel(f"{command[0]} failed with code {done.returncode}: {words[0] if words else 'no message'}")
    return done.stdout


def _make_private_folder(folder: Path) -> None:
    """Make the folder, or remove the permissions of other users."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_only_ours(folder):
        folder.chmod(0o700)  # raises an OSError if it belongs to somebody else


def _is_only_ours(path: Path) -> bool:
    """Whether only this user or root can have written the file or folder; other users' code is not run."""
    try:
        status = path.stat()
    except OSError:
        return False
    return sys.platform == "win32" or (status.st_uid in (0, os.getuid()) and not status.st_mode & OTHERS_MAY_WRITE)


def _is_whole(path: Path) -> bool:
    """Whether the file has its checksum; loading a truncated one may end the process."""
    try:
        return _seal(path).read_text(encoding="ascii", errors="replace") == _digest(path)
    except OSError:
        return False


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernel(f"the compiled kernel cannot be loaded: {error}") from error


INSTRUCTIONS = ("AVX512F", "AVX2", "AVX", "FMA", "ARM_NEON", "ARM_FEATURE_SVE")
"""Compiler macros of the instructions that decide in which order numbers are summed."""


def describe_processor() -> str:
    """Return the name of this machine's processor and, if there is a compiler, the instructions of its kernels."""
    try:
        words = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        words = None
    name = words[1].strip() if words else platform.processor() or platform.machine()
    try:
        _, macros = find_compiler()
    except NoKernel:
        return name
    defined = set(re.findall(r"#define __(\w+?)(?:__)? ", macros.decode(errors="replace")))
    return ", ".join([name, *(word for word in INSTRUCTIONS if word in defined)])


def describe_environment(backend: str) -> dict[str, str]:
    """Describe what a run's numbers depend on, for its manifest; nothing is compiled for the answer.

    Args:
        backend: The training backend.

    Returns:
        The processor and, for the backend `fast`, each kernel's library file, or why torch replaces it.
    """
    facts = {"processor": describe_processor()}
    for source in sorted(Path(__file__).parent.glob("*.c")) if backend == "fast" else ():
        try:
            why = known_problem(source.stem)
            facts[source.stem] = library_path(source).name if why is None else f"torch ({why})"
        except NoKernel as error:
            facts[source.stem] = f"torch ({error})"
    return facts
