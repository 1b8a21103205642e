"""Output of commands: task descriptions and warnings on stderr, tables and results on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fedbalancer.data import Task
    from fedbalancer.paper.folder import WrittenItem
    from fedbalancer.reporting import Comparison


def is_file(task: str) -> bool:
    """Return whether a task is a TOML file."""
    return task.endswith(".toml")


def folder_name(task: str) -> str:
    """Return a task's name for use in a folder name."""
    return Path(task).stem if is_file(task) else task.replace(":", ".")


def label(name: str, variant: str) -> str:
    """Return a task's name with the variant of its data, so that a stand-in is never mistaken for the original."""
    return f"{name} ({variant})" if variant else name


def print_task(task: Task, seconds: float) -> None:
    """Print the size of a loaded task, and how long loading took, to stderr."""
    sizes = task.sizes.values()
    counts = f"{len(sizes):,} clients, {sum(sizes):,} samples"
    typer.echo(f"{label(task.name, task.variant)}: {counts}; prepared in {seconds:.1f} s", err=True)


def print_warnings(messages: Iterable[str]) -> None:
    """Print each warning as a line on stderr."""
    for message in messages:
        typer.echo(f"warning: {message}", err=True)


def describe_task_file(task: Task, settings: Mapping[str, Any], *, trained: bool = True) -> None:
    """Check that the model and the data of a task file fit together, and print what the file defines to stderr.

    Args:
        task: The task of the file.
        settings: The settings that the command overrides.
        trained: Whether the run trains; without training the model is not checked.
    """
    from fedbalancer.data.catalogue.summary import describe_task

    if trained:
        from fedbalancer.training.trainer import TorchTrainer

        TorchTrainer(task)
    typer.echo(describe_task(task, settings), err=True)


def show(comparison: Comparison | None, table: Path) -> None:
    """Print a table: formatted in a terminal, otherwise the text of table.md.

    Args:
        comparison: The scores; None for a single run.
        table: The file table.md.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from fedbalancer.reporting.tables import rich_table

    console, text = Console(), table.read_text(encoding="utf-8")
    if not console.is_terminal:
        typer.echo(text)
    elif comparison is None:
        console.print(Markdown(text))
    else:
        console.print(rich_table(comparison))
        for note in comparison.notes:
            typer.echo(f"note: {note}", err=True)


def show_item(written: WrittenItem, *, as_json: bool) -> None:
    """Print the result of an item of the paper and the path of its page."""
    from fedbalancer.core.files import readable

    if as_json:
        typer.echo(json.dumps(readable(written.shown.json)))
    else:
        typer.echo(written.shown.headline)
        typer.echo(f"page: {written.page}")
