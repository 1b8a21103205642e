"""`fedbalancer flower`: a new Flower app with FedBalancer, and trying an app on this machine."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.core.errors import BadSetting, MissingData

if TYPE_CHECKING:
    from fedbalancer.flower.federation import Federation

flower = typer.Typer(
    cls=Commands,
    help="FedBalancer on Flower: write a new app, try one on this machine, clear what clients keep.",
    no_args_is_help=True,
)


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet, or empty.")],
    framework: Annotated[
        str,
        typer.Option(help="What clients train with: torch, litert (a model file, no torch), or numpy for any other."),
    ] = "torch",
) -> None:
    """Write a Flower app that trains with FedBalancer: pyproject, server, client, README. Fetches nothing.

    Examples:

        fedbalancer flower new my_app

        fedbalancer flower new my_app --framework numpy

        fedbalancer flower new my_app --framework litert
    """
    from fedbalancer.flower.template import write_app

    for path in write_app(folder, framework):
        typer.echo(path)
    typer.echo(f"try it: fedbalancer flower try {shlex.quote(str(folder))}", err=True)


def try_(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of a Flower app.")] = Path(),
    nodes: Annotated[int, typer.Option(min=1, max=100, help="SuperNodes to start, with partition-id 0, 1, ...")] = 3,
    run_config: Annotated[
        list[str] | None, typer.Option("--run-config", "-c", help="Given on to `flwr run`; repeatable.")
    ] = None,
) -> None:
    """Run a Flower app on a SuperLink and SuperNodes of this machine, show its log, and stop them all.

    No TLS, no authentication, and nothing is installed: the app runs with the packages of this Python, in DIR: a run
    folder or a final_model.pt that its server writes to a relative path stays there.

    Example:

        fedbalancer flower try my_app --nodes 3 -c "rounds=2"
    """
    _check_app(folder)
    if find_spec("flwr") is None:
        raise MissingData("this needs flwr; install it: pip install 'fedbalancer[flower]'")
    from fedbalancer.flower.federation import Federation

    # As Ctrl-C does, so that the processes below end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        TemporaryDirectory(prefix="fedbalancer-flower-") as place,
        Federation(Path(place), cwd=folder.resolve()) as federation,
    ):
        federation.superlink()
        for number in range(nodes):
            federation.supernode(f"node-{number}", f"partition-id={number} num-partitions={nodes}")
        _run(federation, folder, run_config or [])


def _run(federation: Federation, folder: Path, run_config: list[str]) -> None:
    """Run an app to its end; what the SuperLink and the nodes said is shown if it failed."""
    options = [part for given in run_config for part in ("--run-config", given)]
    subprocess.run(["flwr", "run", str(folder), *options, "--stream"], env=federation.environment, check=False)
    status = _status(federation)
    typer.echo(f"run {status}", err=True)
    if status == "finished:completed":
        return
    for name in federation.processes:
        typer.echo(f"--- {name}\n{federation.log(name)[-2000:]}", err=True)
    raise typer.Exit(1)


def _status(federation: Federation) -> str:
    """What became of the only run of a SuperLink."""
    asked = subprocess.run(
        ["flwr", "ls", "--format", "json"], env=federation.environment, capture_output=True, text=True, check=False
    )
    try:
        return str(json.loads(asked.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "not started"


def _check_app(folder: Path) -> None:
    """Refuse a folder that holds no Flower app."""
    path = folder / "pyproject.toml"
    try:
        _ = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    except FileNotFoundError as error:
        raise BadSetting(f"{folder} has no pyproject.toml; give the folder of a Flower app") from error
    except (OSError, ValueError) as error:
        raise BadSetting(f"{path} cannot be read: {error}") from error
    except KeyError as error:
        raise BadSetting(f"{path} has no [tool.flwr.app]; give the folder of a Flower app") from error


def forget(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Default: where the clients of this user keep them.")
    ] = None,
) -> None:
    """Delete the loss lists that Flower clients keep on this machine's disk.

    A client without one is in its first round again. Nothing else in the folder is touched.

    Example:

        fedbalancer flower forget
    """
    if find_spec("flwr") is None:
        raise MissingData("this needs flwr; install it: pip install 'fedbalancer[flower]'")
    from fedbalancer.flower.memory import list_memory_files, memory_folder

    place = folder if folder is not None else memory_folder()
    files = list_memory_files(place) if place is not None else []
    try:
        for file in files:
            file.unlink()
    except OSError as error:
        raise BadSetting(f"{error.filename} cannot be deleted: {error.strerror}") from error
    typer.echo(f"{len(files)} loss lists deleted in {place}", err=True)


flower.command("new")(with_clear_errors(new))
flower.command("try")(with_clear_errors(try_))
flower.command("forget")(with_clear_errors(forget))
