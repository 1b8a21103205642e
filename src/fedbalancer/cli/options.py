"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer.core.errors import BadSetting

METHODS = ("method", "methods")
"""Keys of the configuration file that are no settings."""


def known_tasks(incomplete: str) -> list[str]:
    """What a shell offers for a task."""
    from fedbalancer.data.registry import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def known_methods(incomplete: str) -> list[str]:
    """What a shell offers for methods, after those that are typed already."""
    from fedbalancer.methods.table import BASES

    before, comma, begun = incomplete.rpartition(",")
    return [before + comma + name for name in BASES if name.startswith(begun)]


Scale = Annotated[str, typer.Option(help="Size of the task: small, or paper as published.")]
Users = Annotated[int | None, typer.Option(help="How many users of the task to take, where it allows a choice.")]
Variant = Annotated[str | None, typer.Option(help="Which of the task's data sets (`fedbalancer data list`).")]
Rounds = Annotated[int | None, typer.Option(help="Rounds (default: the task's).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left in the folder.")]
Targets = Annotated[
    str | None,
    typer.Option(help="Comma-separated shares of the reference's final accuracy, the main one first (1,.95,.9)."),
]
Rule = Annotated[
    str, typer.Option(help="How to evaluate and score: fair (one grid of seconds, target held) or paper (by rounds).")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="A setting as key=value; repeatable. See `fedbalancer list settings`.")
]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings (default: fedbalancer.toml, if there).")]

Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack", help="Clients that are not honest, as NAME:COUNT; repeatable. See `fedbalancer list attacks`."
    ),
]

Workers = Annotated[
    int | None, typer.Option(help="Processes that train clients; as many as cores for a run that is long, unless told.")
]
Executor = Annotated[
    str | None,
    typer.Option(help="Who trains: inline (this process), pool (processes) or ray (actors). Same results, same bytes."),
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster: auto or HOST:PORT (without it, --executor ray starts one here).")
]
Backend = Annotated[str, typer.Option(help="How: fast, or plain (torch's own operations only).")]
Device = Annotated[str, typer.Option(help="Where torch computes: cpu, cuda or mps.")]
SameBackend = Annotated[str | None, typer.Option(help="fast or plain (default: as it began).")]
SameDevice = Annotated[str | None, typer.Option(help="cpu, cuda or mps (default: as it began).")]
Jobs = Annotated[
    int | None, typer.Option(help="Runs at the same time (default: as many as the cores and --workers allow).")
]


Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Who is told of every round: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT] or package.module:Class.",
    ),
]


def seeds_of(text: str) -> tuple[int, ...]:
    """The seeds that a text asks for: so many of them, from one to another, or single ones.

    >>> seeds_of("3"), seeds_of("10..12"), seeds_of("4,7")
    ((0, 1, 2), (10, 11, 12), (4, 7))
    """
    problem = BadSetting(f"seeds = {text!r} must be how many (5), from..to (10..19) or single ones (4,7)")
    try:
        first, dots, last = text.partition("..")
        if "," in text:
            found: Sequence[int] = [int(part) for part in text.split(",")]
        else:
            found = range(int(first), int(last) + 1) if dots else range(int(text))
        fits = 1 <= len(found) <= 1000
    except (ValueError, OverflowError):
        raise problem from None
    if not fits or min(found) < 0 or len(set(found)) < len(found):
        raise problem
    return tuple(found)


def overrides(config: Path | None, assignments: list[str] | None, attacks: list[str] | None = None) -> dict[str, Any]:
    """Settings of the configuration file and, over them, those of the command line."""
    from fedbalancer.core.settings import merge, parse_assignments, read_config  # late: --help takes no time

    in_file = {key: value for key, value in read_config(config).items() if key not in METHODS}
    return merge(in_file, parse_assignments(assignments or []), {"attacks": attacks} if attacks else {})


def methods_of(config: Path | None, asked: Sequence[str] | None, key: str, otherwise: Sequence[str]) -> list[str]:
    """The methods of the command line or, where it names none, of the configuration file (`key` is method for one run,
    methods for several), or the usual ones."""
    from fedbalancer.core.settings import read_config
    from fedbalancer.methods.names import split_names

    if asked:
        found = split_names(",".join(asked))
    else:
        named = read_config(config).get(key, list(otherwise))
        found = [named] if isinstance(named, str) else named
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise BadSetting(f"{key} = {found!r} must be names of methods, as in ['fedavg+1t', 'fedbalancer[w=5]']")
    if key == "method" and len(found) > 1:
        raise BadSetting(f"method = {', '.join(found)}: a run has one method; several are for `fedbalancer compare`")
    return found


def targets(text: str | None) -> list[float] | None:
    """The shares that `--target` gives, if it was."""
    try:
        return None if text is None else [float(share) for share in text.split(",")]
    except ValueError:
        raise BadSetting(f"--target {text!r} must be shares like 1,.95,.9") from None
