"""`fedbalancer flower`: create a Flower app with FedBalancer, try an app on this machine, and operate a run."""

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
from fedbalancer.cli.options import Json
from fedbalancer.core.errors import BadSetting, MissingData

if TYPE_CHECKING:
    from fedbalancer.flower.federation import Federation

flower = typer.Typer(
    cls=Commands,
    help="FedBalancer on Flower: create an app, try an app on this machine, operate a run.",
    no_args_is_help=True,
)


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
    framework: Annotated[
        str,
        typer.Option(
            help="Framework of the clients: torch, litert (a model file, without torch), or numpy for any other."
        ),
    ] = "torch",
) -> None:
    """Create a Flower app that trains with FedBalancer: pyproject.toml, server, client and README.

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
    nodes: Annotated[int, typer.Option(min=1, max=100, help="Number of SuperNodes, with partition-id 0, 1, ...")] = 3,
    run_config: Annotated[
        list[str] | None, typer.Option("--run-config", "-c", help="Passed to `flwr run`; repeatable.")
    ] = None,
) -> None:
    """Run a Flower app on a SuperLink and SuperNodes on this machine, show its log, and stop all processes.

    There is no TLS and no authentication. Nothing is installed: the app uses the packages of this Python. It runs in
    DIR, so files that its server writes to relative paths stay there.

    Example:

        fedbalancer flower try my_app --nodes 3 -c "rounds=2"
    """
    _check_app(folder)
    if find_spec("flwr") is None:
        raise MissingData("this needs flwr: pip install 'fedbalancer[flower]'")
    from fedbalancer.flower.federation import Federation

    # Exit as on Ctrl-C, so that the processes below end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        TemporaryDirectory(prefix="fedbalancer-flower-") as temporary,
        Federation(Path(temporary), cwd=folder.resolve()) as federation,
    ):
        federation.superlink()
        for number in range(nodes):
            federation.supernode(f"node-{number}", f"partition-id={number} num-partitions={nodes}")
        _run(federation, folder, run_config or [])


def _run(federation: Federation, folder: Path, run_config: list[str]) -> None:
    """Run an app. If it fails, print the logs of the SuperLink and the SuperNodes."""
    options = [part for config in run_config for part in ("--run-config", config)]
    subprocess.run(["flwr", "run", str(folder), *options, "--stream"], env=federation.environment, check=False)
    status = _status(federation)
    typer.echo(f"run {status}", err=True)
    if status == "finished:completed":
        return
    for name in federation.processes:
        typer.echo(f"--- {name}\n{federation.log(name)[-2000:]}", err=True)
    raise typer.Exit(1)


def _status(federation: Federation) -> str:
    """Return the status of the SuperLink's only run."""
    listed = subprocess.run(
        ["flwr", "ls", "--format", "json"], env=federation.environment, capture_output=True, text=True, check=False
    )
    try:
        return str(json.loads(listed.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "not started"


def _check_app(folder: Path) -> None:
    """Raise BadSetting if a folder holds no Flower app."""
    path = folder / "pyproject.toml"
    try:
        _ = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    except FileNotFoundError as error:
        raise BadSetting(f"{folder} has no pyproject.toml; pass the folder of a Flower app") from error
    except (OSError, ValueError) as error:
        raise BadSetting(f"{path} cannot be read: {error}") from error
    except KeyError as error:
        raise BadSetting(f"{path} has no [tool.flwr.app]; pass the folder of a Flower app") from error


def forget(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder. Default: the one that this user's clients use.")
    ] = None,
) -> None:
    """Delete the loss lists that Flower clients store on this machine.

    A client without a loss list starts as in its first round. Other files in the folder are kept.

    Example:

        fedbalancer flower forget
    """
    if find_spec("flwr") is None:
        raise MissingData("this needs flwr: pip install 'fedbalancer[flower]'")
    from fedbalancer.flower.memory import list_memory_files, memory_folder

    if folder is not None and not folder.is_dir():
        raise BadSetting(f"{folder} is not a folder; pass the folder of the clients' loss lists")
    memory = folder if folder is not None else memory_folder()
    files = list_memory_files(memory) if memory is not None else []
    try:
        for file in files:
            file.unlink()
    except OSError as error:
        raise BadSetting(f"{error.filename} cannot be deleted: {error.strerror}") from error
    typer.echo(f"{len(files)} loss lists deleted in {memory}", err=True)


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a copy of it.")],
    window: Annotated[int, typer.Option("--last", min=1, help="Rounds that recent figures cover.")] = 20,
    as_json: Json = False,
) -> None:
    """Show how a run on Flower is doing, and what needs attention. flwr is not needed.

    Examples:

        fedbalancer flower status runs/my-run

        fedbalancer flower status runs/my-run --last 50 --json
    """
    from fedbalancer.core.files import readable
    from fedbalancer.experiments.shadow import shadow_lines
    from fedbalancer.flower.operate import run_status, status_lines

    state = run_status(run, window)
    replayed = shadow_lines(run, window)
    if as_json:
        typer.echo(json.dumps(readable({**state, "shadow": replayed})))
    else:
        typer.echo("\n".join([*status_lines(state), *(f"shadow     {line}" for line in replayed)]))


def rollback(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, on the machine of the server.")],
    to: Annotated[int, typer.Option(min=1, help="Round of the checkpoint to return to.")],
    as_json: Json = False,
) -> None:
    """Return a stopped Flower run to an earlier checkpoint; later rounds are removed.

    Submit the app again with the same run_key to continue from there. `flower status` lists the checkpoints.

    Example:

        fedbalancer flower rollback runs/my-run --to 40
    """
    from fedbalancer.flower.release import roll_back

    done = roll_back(run, to)
    text = f"{run}: rolled back from round {done['from_round']} to round {to}; submit the app again to continue"
    typer.echo(json.dumps(done) if as_json else text)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder; a server may be running.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    at: Annotated[int | None, typer.Option("--round", min=1, help="Round of the checkpoint. Default: newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Export the checkpoint with the best evaluation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Export a model that does not meet the gate.")] = False,
    as_json: Json = False,
) -> None:
    """Write the model of a Flower run as safetensors, with its round and the hash of the run's manifest.

    Examples:

        fedbalancer flower export runs/my-run --out model.safetensors --best

        fedbalancer flower export runs/my-run --out model.safetensors --round 40 --json
    """
    from fedbalancer.flower.release import export_model

    if best and at is not None:
        raise BadSetting("--best and --round exclude each other")
    done = export_model(run, out, at, best, force)
    text = f"{out}: round {done['round']}, sha256 {done['sha256']}, manifest {done['manifest_sha256']}"
    typer.echo(json.dumps(done) if as_json else text)


def submit(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="Folder of a Flower app.")],
    run: Annotated[Path, typer.Option(help="Run folder of the app's Strategy: checkpoint_dir/run_key.")],
    run_config: Annotated[
        list[str] | None, typer.Option("--run-config", "-c", help="Passed to `flwr run`; repeatable.")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Submissions in a row without a new round before giving up.")] = 5,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds before another submission.")] = 30.0,
) -> None:
    """Submit a Flower app, and again whenever its ServerApp or SuperLink dies, until the run is done.

    Needs access to the run folder, and `flwr` configured for the SuperLink. Ctrl-C ends the supervision only.

    Example:

        fedbalancer flower submit my_app --run /runs/my-run
    """
    from fedbalancer.flower.submit import Submitter

    _check_app(folder)
    if run.exists() and not run.is_dir():
        raise BadSetting(f"--run {run} is a file; pass the run folder of the app's Strategy")
    options = [part for config in run_config or [] for part in ("--run-config", config)]
    submitter = Submitter(folder, run, options, tries, wait_s=wait_s, say=lambda line: typer.echo(line, err=True))
    typer.echo(f"{run}: {submitter.keep_running()}")


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="Number of nodes.")] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address of the SuperLink; repeatable. Loopback is always included."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the SuperLink.")] = 9092,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificates expire.")] = 365,
) -> None:
    """Create the certificates of a SuperLink and a key pair per node, for TLS and node authentication.

    The folder also gets flower/config.toml: with FLWR_HOME=DIR/flower, `flwr` finds the SuperLink. Keep ca.key offline.

    Examples:

        fedbalancer flower keys keys --nodes 3

        fedbalancer flower keys keys --nodes 20 --host superlink.example.org --port 9443 --days 30
    """
    if find_spec("flwr") is None:
        raise MissingData("this needs flwr: pip install 'fedbalancer[flower]'")
    from fedbalancer.flower.keys import write_keys

    write_keys(folder, nodes=nodes, hosts=host or (), port=port, days=days)
    typer.echo(f"{folder}: a CA, the SuperLink's certificate, and the keys of {nodes} nodes", err=True)


flower.command("keys")(with_clear_errors(keys))
flower.command("submit")(with_clear_errors(submit))
flower.command("rollback")(with_clear_errors(rollback))
flower.command("export")(with_clear_errors(export))
flower.command("status")(with_clear_errors(status))
flower.command("new")(with_clear_errors(new))
flower.command("try")(with_clear_errors(try_))
flower.command("forget")(with_clear_errors(forget))
