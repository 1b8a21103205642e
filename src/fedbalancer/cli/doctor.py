"""`fedbalancer doctor`: check the installation and the machine."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer import __version__
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.options import Assignments, Backend, Json, complete_task
from fedbalancer.core.errors import BadSetting

OPTIONAL = {
    "torch": ("torch", "training; without it only --timing-only runs"),
    "seglearn": ("demo", "the recordings of the demo task watch"),
    "flwr": ("flower", "real clients (fedbalancer flower, testbed)"),
    "ray": ("ray", "--executor ray"),
    "optuna": ("sweep", "fedbalancer sweep"),
    "dp-accounting": ("privacy", "fedbalancer privacy plan"),
}
"""Optional packages: the extra that installs each, and its purpose."""
LEAST_FREE_BYTES = 10**9
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        state: ok, note (something optional is missing) or problem.
        what: What was checked.
        words: The result, for people.
    """

    state: str
    what: str
    words: str


def doctor(
    task: Annotated[
        str | None,
        typer.Argument(
            help="Task whose training is explained: which backend takes the steps, and why. Default: none.",
            autocompletion=complete_task,
        ),
    ] = None,
    set_: Assignments = None,
    backend: Backend = "fast",
    as_json: Json = False,
) -> None:
    """Check the installation and the machine. The exit code is 2 if something required is missing.

    Examples:

        fedbalancer doctor

        fedbalancer doctor synthetic --set optimizer=adamw
    """
    from fedbalancer.core.settings import parse_assignments

    results = list(run_checks())
    if task is not None:
        results += _training(task, parse_assignments(set_ or ()), backend)
    elif set_:
        raise BadSetting(f"--set {set_[0]} is for a task: fedbalancer doctor TASK --set {set_[0]}")
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in results]))
    else:
        for each in results:
            typer.echo(f"{each.state:8}{each.what}: {each.words}")
    if any(each.state == "problem" for each in results):
        raise typer.Exit(EXIT_USER_ERROR)


def run_checks() -> Iterator[Finding]:
    """Yield the result of every check, in the order in which they are printed."""
    yield _python()
    yield Finding("ok", "fedbalancer", f"{__version__} in {Path(__file__).parent.parent}")
    yield from _packages()
    yield from _kernels()
    yield _cores()
    yield from _folders()


def _python() -> Finding:
    fits = sys.version_info >= (3, 11)
    words = f"{platform.python_version()} ({sys.executable})"
    return (
        Finding("ok", "Python", words) if fits else Finding("problem", "Python", f"{words}; 3.11 or newer is required")
    )


def _packages() -> Iterator[Finding]:
    for package in _required_packages():
        installed = _version(package)
        missing = f"missing; pip install {package}"
        yield Finding("ok", package, installed) if installed else Finding("problem", package, missing)
    for package, (extra, purpose) in OPTIONAL.items():
        installed = _version(package)
        missing = f"not installed; for {purpose}: pip install 'fedbalancer[{extra}]'"
        yield Finding("ok", package, installed) if installed else Finding("note", package, missing)


def _required_packages() -> list[str]:
    """Return the required packages, from the metadata of the installation."""
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
        yield Finding("note", "compiler", f"{error}; training uses torch's own operations, which is slower")
        return
    decision = kernels.decide()
    failed = {name: why for name, why in decision.items() if why is not None}
    names = ", ".join(sorted(decision.keys() - failed.keys()))
    yield Finding("ok", "kernels", names) if names else Finding("note", "kernels", "none")
    for name, why in failed.items():
        yield Finding("note", f"kernel {name}", f"{why}; torch is used instead")


def _training(task: str, settings: Mapping[str, Any], backend: str) -> Iterator[Finding]:
    """Explain which backend trains a task, and how each layer runs."""
    from fedbalancer.experiments.executor_cache import require_torch
    from fedbalancer.experiments.simulation import resolve_spec
    from fedbalancer.experiments.spec import RunSpec
    from fedbalancer.training.trainer import TorchTrainer

    require_torch()
    spec = RunSpec(task=task, method="fedavg+1t", settings=settings, backend=backend)
    loaded = spec.load_task()
    resolved, method = resolve_spec(spec, loaded)
    training = spec.training(resolved, loaded, method)
    yield Finding(
        "ok", f"training of {loaded.name}", f"backend {training['path']}; {training['why'] or training['optimizer']}"
    )
    plan = TorchTrainer(loaded, training["path"]).plan
    for layer in plan.layers if plan is not None else ():
        yield Finding("ok", f"layer {layer.name or 'model'}", f"{layer.how}{f' ({layer.why})' if layer.why else ''}")


def _cores() -> Finding:
    from fedbalancer.core.processes import usable_cores

    return Finding("ok", "cores", f"{usable_cores()} ({platform.machine()})")


def _folders() -> Iterator[Finding]:
    from fedbalancer.core.files import CACHE, DATA, cache_folder, data_folder

    for what, folder, variable in (("data folder", data_folder(), DATA), ("cache folder", cache_folder(), CACHE)):
        words = f"{folder} ({'exists' if folder.is_dir() else 'created when needed'}; set {variable} to change it)"
        yield Finding("ok", what, words)
    for what, path in (("disk here", Path.cwd()), ("disk of the cache folder", _existing_parent(cache_folder()))):
        free = shutil.disk_usage(path).free
        words = f"{free / GIB:.1f} GiB free"
        enough = free >= LEAST_FREE_BYTES
        yield Finding("ok", what, words) if enough else Finding("problem", what, f"{words}; runs need at least 1 GB")


def _existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
