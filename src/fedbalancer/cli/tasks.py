"""How tasks are named, and what is said of them before they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from fedbalancer.data import Task


T = TypeVar("T")


def is_file(task: str) -> bool:
    """Whether a task is a file and not a name."""
    return task.endswith(".toml")


def folder_name(task: str) -> str:
    """A task as part of a folder's name."""
    return Path(task).stem if is_file(task) else task.replace(":", ".")


def label(name: str, variant: str) -> str:
    """A task with the variant of its data: nobody may take a stand-in for the original."""
    return f"{name} ({variant})" if variant else name


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` gives, and how many seconds it took."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def say_prepared(task: Task, seconds: float) -> None:
    """A line on stderr about a task that is ready, and how long that took."""
    sizes = task.sizes.values()
    counted = f"{len(sizes):,} clients, {sum(sizes):,} samples"
    typer.echo(f"{label(task.name, task.variant)}: {counted}; prepared in {seconds:.1f} s", err=True)


def say_surprises(sentences: Iterable[str]) -> None:
    """What may surprise the user, each as a line on stderr."""
    for sentence in sentences:
        typer.echo(f"warning: {sentence}", err=True)


def announce(task: Task, overrides: Mapping[str, Any], *, trained: bool = True) -> None:
    """Check that model and data fit together, then print what was understood to stderr."""
    from fedbalancer.data.catalogue.summary import describe_task

    if trained:
        from fedbalancer.training.trainer import TorchTrainer

        TorchTrainer(task)
    typer.echo(describe_task(task, overrides), err=True)
