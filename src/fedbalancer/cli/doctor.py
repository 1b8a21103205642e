"""`fedbalancer doctor`: what is here, what is missing, and what to type; one line each."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from fedbalancer import __version__
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.options import Json

OPTIONAL = {
    "torch": ("torch", "training; without it only --timing-only runs"),
    "seglearn": ("demo", "the recordings of the demo task watch"),
    "flwr": ("flower", "real clients (fedbalancer flower, testbed)"),
    "ray": ("ray", "--executor ray"),
    "optuna": ("sweep", "fedbalancer sweep"),
    "dp-accounting": ("privacy", "fedbalancer privacy plan"),
}
"""Packages that not everybody needs: the extra that brings each, and what for."""
LEAST_FREE_BYTES = 10**9
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line: `state` is ok, note (something optional is missing) or problem."""

    state: str
    what: str
    words: str


def doctor(as_json: Json = False) -> None:
    """Say what is installed, what the machine has, and what is missing; the exit code is 2 if something needed is.

    Example:

        fedbalancer doctor
    """
    found = list(findings())
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
    else:
        for each in found:
            typer.echo(f"{each.state:8}{each.what}: {each.words}")
    if any(each.state == "problem" for each in found):
        raise typer.Exit(EXIT_USER_ERROR)


def findings() -> Iterator[Finding]:
    """All that is looked at, in the order in which it is printed."""
    yield _python()
    yield Finding("ok", "fedbalancer", f"{__version__} in {Path(__file__).parent.parent}")
    yield from _packages()
    yield from _kernels()
    yield _cores()
    yield from _folders()


def _python() -> Finding:
    fits = sys.version_info >= (3, 11)
    words = f"{platform.python_version()} ({sys.executable})"
    return Finding("ok", "Python", words) if fits else Finding("problem", "Python", f"{words}; 3.11 or newer is needed")


def _packages() -> Iterator[Finding]:
    for package in _needed():
        here = _version(package)
        yield Finding("ok", package, here) if here else Finding("problem", package, f"missing; pip install {package}")
    for package, (extra, what_for) in OPTIONAL.items():
        here = _version(package)
        missing = f"not installed; for {what_for}: pip install 'fedbalancer[{extra}]'"
        yield Finding("ok", package, here) if here else Finding("note", package, missing)


def _needed() -> list[str]:
    """The packages that every installation has, by its own metadata."""
    try:
        lines = requires("fedbalancer") or []
    except PackageNotFoundError:
        lines = ["numpy", "polars"]
    return [line.partition(";")[0].partition(">")[0].strip() for line in lines if "extra ==" not in line]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kernels() -> Iterator[Finding]:
    from fedbalancer.training.fast import kernels

    try:
        command, _ = kernels.find_compiler()
        yield Finding("ok", "compiler", " ".join(command))
    except kernels.NoKernel as error:
        yield Finding("note", "compiler", f"{error}; training takes torch's own operations, which is slower")
        return
    decided = kernels.decide()
    failed = {name: why for name, why in decided.items() if why is not None}
    names = ", ".join(sorted(decided.keys() - failed.keys()))
    yield Finding("ok", "kernels", names) if names else Finding("note", "kernels", "none")
    for name, why in failed.items():
        yield Finding("note", f"kernel {name}", f"{why}; torch does its work")


def _cores() -> Finding:
    from fedbalancer.core.processes import usable_cores

    return Finding("ok", "cores", f"{usable_cores()} ({platform.machine()})")


def _folders() -> Iterator[Finding]:
    from fedbalancer.core.paths import CACHE, DATA, cache_folder, data_folder

    for what, folder, variable in (("data folder", data_folder(), DATA), ("cache folder", cache_folder(), CACHE)):
        words = f"{folder} ({'there' if folder.is_dir() else 'made when needed'}; {variable} names another)"
        yield Finding("ok", what, words)
    for what, place in (("disk here", Path.cwd()), ("disk of the cache folder", _there(cache_folder()))):
        free = shutil.disk_usage(place).free
        words = f"{free / GIB:.1f} GiB free"
        enough = free >= LEAST_FREE_BYTES
        yield Finding("ok", what, words) if enough else Finding("problem", what, f"{words}; runs need at least 1 GB")


def _there(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
