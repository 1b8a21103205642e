"""Tasks that are files of the user's own: how they are named, and what is said before they run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fedbalancer.tasks import Task


def is_file(task: str) -> bool:
    """Whether a task is a file and not a name."""
    return task.endswith(".toml")


def source(task: str) -> str:
    """A task as a run folder remembers it: a file by its whole path, so that `resume` finds it from anywhere."""
    return str(Path(task).absolute()) if is_file(task) else task


def folder_name(task: str) -> str:
    """A task as part of a folder's name."""
    return Path(task).stem if is_file(task) else task.replace(":", ".")


def announce(task: Task, overrides: Mapping[str, Any], *, trained: bool = True) -> None:
    """Check that model and data fit together, then print what was understood to stderr."""
    from fedbalancer.tasks.own.summary import describe

    if trained:
        from fedbalancer.client.train import TorchTrainer

        TorchTrainer(task)
    typer.echo(describe(task, overrides), err=True)
