"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer.settings import merge, parse_assignments, read_config

Scale = Annotated[str, typer.Option(help="Size of the task: small, or paper as published.")]
Users = Annotated[int | None, typer.Option(help="How many users of the task to take, where it allows a choice.")]
Variant = Annotated[str | None, typer.Option(help="Which of the task's data sets (`fedbalancer data list`).")]
Rounds = Annotated[int | None, typer.Option(help="Rounds (default: the task's).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="A setting as key=value; repeatable. See `fedbalancer list settings`.")
]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings (default: fedbalancer.toml, if there).")]

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
Engine = Annotated[str, typer.Option(help="How: fast, or plain (torch's own operations only).")]
Device = Annotated[str, typer.Option(help="Where torch computes: cpu, cuda or mps.")]
SameEngine = Annotated[str | None, typer.Option(help="fast or plain (default: as it began).")]
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


def overrides(config: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """Settings of the configuration file and, over them, those of the command line."""
    return merge(read_config(config), parse_assignments(assignments or []))
