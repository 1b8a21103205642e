"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer.core.errors import BadSetting

METHODS, DEVICES = ("method", "methods"), "devices"
"""Keys of the configuration file that are not settings."""


def complete_task(incomplete: str) -> list[str]:
    """Return the tasks that a shell offers as completions."""
    from fedbalancer.data.registry import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return the completions for the last method of a comma-separated list."""
    from fedbalancer.methods.table import BASES

    before, comma, begun = incomplete.rpartition(",")
    return [before + comma + name for name in BASES if name.startswith(begun)]


Scale = Annotated[str, typer.Option(help="Size of the task: small, or paper as published.")]
Users = Annotated[int | None, typer.Option(help="Number of users, for tasks that allow a choice. Default: the task's.")]
Variant = Annotated[
    str | None,
    typer.Option(help="Data set (`fedbalancer data list`). Default: the official data, if installed."),
]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds. Default: the task's.")]
TargetMetric = Annotated[
    str | None,
    typer.Option(help="Metric of targets and scores: one of the task's metrics, or loss. Default: the task's first."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of an earlier run in the folder.")]
Targets = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated shares of the reference's final metric, the main one first. Default: 1,0.95,0.9."
    ),
]
Rule = Annotated[
    str,
    typer.Option(
        help="Scoring rule: fair (one grid of seconds, targets must be held) or paper (evaluation by rounds)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="Setting as key=value; repeatable. See `fedbalancer list settings`."),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings. Default: fedbalancer.toml, if it exists.")]
Attacks = Annotated[
    list[str] | None,
    typer.Option("--attack", help="Attacking clients as NAME:COUNT; repeatable. See `fedbalancer list attacks`."),
]
Workers = Annotated[
    int | None, typer.Option(help="Worker processes that train clients. Default: one per core for long runs.")
]
Executor = Annotated[
    str | None,
    typer.Option(
        help="Who trains: inline (this process), pool (processes) or ray (actors), with the same results. "
        "Default: by --workers."
    ),
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster: auto or HOST:PORT. Default: --executor ray starts one here.")
]
Gpus = Annotated[
    float | None,
    typer.Option(help="Share of a GPU per worker, with --device cuda: 0.25 lets four workers share one."),
]
Devices = Annotated[
    str | None,
    typer.Option(help="Simulated devices: CSV or Parquet file of a fleet, or paper. Default: the task's, else paper."),
]
Backend = Annotated[str, typer.Option(help="Training backend: fast, or plain (only torch's own operations).")]
Device = Annotated[str, typer.Option(help="Where torch computes: cpu, cuda or mps.")]
SameBackend = Annotated[str | None, typer.Option(help="Training backend: fast or plain. Default: the run's.")]
SameDevice = Annotated[str | None, typer.Option(help="Where torch computes: cpu, cuda or mps. Default: the run's.")]
Jobs = Annotated[
    int | None, typer.Option(help="Number of runs in parallel. Default: as many as the cores and --workers allow.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Experiment tracker: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT], prometheus[:PORT] or "
        "package.module:Class; repeatable.",
    ),
]

Group = Mapping[str, tuple[Any, Any]]
"""Options by parameter name, each with its annotation and default."""

RUN_OPTIONS: Group = {
    "scale": (Scale, "small"),
    "users": (Users, None),
    "variant": (Variant, None),
    "rounds": (Rounds, None),
    "target_metric": (TargetMetric, None),
    "devices": (Devices, None),
    "backend": (Backend, "fast"),
    "device": (Device, "cpu"),
    "attack": (Attacks, None),
    "set_": (Assignments, None),
    "config": (Config, None),
}
"""The options of `run`, `compare` and `sweep` that describe a run (`fedbalancer.experiments.spec.RunOptions`)."""

EXECUTION_OPTIONS: Group = {
    "workers": (Workers, None),
    "executor": (Executor, None),
    "address": (Address, None),
    "gpus": (Gpus, None),
    "track": (Track, None),
}
"""The options of `run`, `compare` and `resume` that say who does the work (`ExecutionOptions`)."""


def with_options(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the `**options` of a command by the options of groups."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for group in groups
            for name, (annotation, default) in group.items()
        ]
        parameters += shared
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parsed options of a command to keyword options of `fedbalancer.run` and `fedbalancer.compare`."""
    settings = overrides(options["config"], options["set_"], options["attack"], (*METHODS, DEVICES))
    plain = {name: value for name, value in options.items() if name not in ("config", "set_", "attack", "track")}
    track = {"track": options["track"]} if options.get("track") else {}
    if plain["devices"] is None:
        plain["devices"] = configured_devices(options["config"])
    return {**plain, **track, "settings": settings}


def configured_devices(config: Path | None) -> Any:
    """Return the fleet of the table `[devices]` in the configuration file; None if there is no such table.

    Raises:
        BadSetting: If it is not a table.
    """
    from fedbalancer.core.settings import read_config

    table = read_config(config).get(DEVICES)
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise BadSetting(f'devices = {table!r} must be a table: [devices], with file = "fleet.csv" or a kind')
    from fedbalancer.simulation.devices.fleet_files import fleet_of_table

    return fleet_of_table(table, config.parent if config is not None else Path())


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a number of seeds, a range, or a list of seeds.

    >>> parse_seeds("3"), parse_seeds("10..12"), parse_seeds("4,7")
    ((0, 1, 2), (10, 11, 12), (4, 7))
    """
    problem = BadSetting(f"seeds = {text!r} must be a number (5), a range (10..19) or a list (4,7)")
    try:
        first, dots, last = text.partition("..")
        if "," in text:
            seeds: Sequence[int] = [int(part) for part in text.split(",")]
        else:
            seeds = range(int(first), int(last) + 1) if dots else range(int(text))
        fits = 1 <= len(seeds) <= 1000
    except (ValueError, OverflowError):
        raise problem from None
    if not fits or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise problem
    return tuple(seeds)


def overrides(
    config: Path | None,
    assignments: list[str] | None,
    attacks: list[str] | None = None,
    apart: Sequence[str] = METHODS,
) -> dict[str, Any]:
    """Return the settings of the configuration file, overridden by those of the command line.

    Args:
        config: The configuration file. Default: fedbalancer.toml, if it exists.
        assignments: Settings as key=value.
        attacks: Attacks as NAME:COUNT.
        apart: Keys of the file that the command reads elsewhere.

    Raises:
        BadSetting: If the file has devices, and the command does not use them.
    """
    from fedbalancer.core.settings import merge, parse_assignments, read_config  # imported late to keep --help fast

    in_file = {key: value for key, value in read_config(config).items() if key not in apart}
    if DEVICES in in_file:
        raise BadSetting("[devices] of the configuration file applies to run, compare and sweep only; remove it here")
    return merge(in_file, parse_assignments(assignments or []), {"attacks": attacks} if attacks else {})


def select_methods(config: Path | None, requested: Sequence[str] | None, key: str, default: Sequence[str]) -> list[str]:
    """Return the methods of the command line, of the configuration file, or the default ones.

    Args:
        config: The configuration file.
        requested: The values of the command line's option.
        key: The key of the configuration file: method for one run, methods for several.
        default: The default methods.

    Raises:
        BadSetting: If the methods are not names, or a run has several.
    """
    from fedbalancer.core.settings import read_config
    from fedbalancer.methods.names import split_names

    if requested:
        names = split_names(",".join(requested))
    else:
        configured = read_config(config).get(key, list(default))
        names = [configured] if isinstance(configured, str) else configured
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadSetting(f"{key} = {names!r} must be method names, such as ['fedavg+1t', 'fedbalancer[w=5]']")
    if key == "method" and len(names) > 1:
        raise BadSetting(f"method = {', '.join(names)}: a run has one method; use `fedbalancer compare` for several")
    return names


def parse_targets(text: str | None) -> list[float] | None:
    """Parse the shares of `--target`; None if the option is absent."""
    try:
        return None if text is None else [float(share) for share in text.split(",")]
    except ValueError:
        raise BadSetting(f"--target {text!r} must be shares like 1,0.95,0.9") from None
