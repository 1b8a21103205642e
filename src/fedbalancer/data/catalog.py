"""Which data every task can have: the `SOURCES` of the module in which the task is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from fedbalancer.data.source import Source, named
from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.tasks.registry import TASKS, imported


def sources_of(task: str) -> tuple[Source, ...]:
    """The sources of a task, the official one first; none for a task that needs no files, or for one of your own that
    does not say."""
    module = _module(task)
    return tuple(getattr(module, "SOURCES", ()))


def source_of(task: str, variant: str | None = None) -> Source:
    """The variant of that name, or the official one; it need not be there."""
    sources = sources_of(task)
    if not sources:
        raise BadSetting(f"task {task!r} has no data files of its own; there is nothing to fetch, import or check")
    return named(sources, variant)


def catalog() -> Iterator[tuple[str, Source | None]]:
    """Every task of the registry with each of its sources, or with None if it has no files."""
    for task in TASKS:
        for source in sources_of(task) or (None,):
            yield task, source


def _module(task: str) -> Any:
    """The module that the task's loader is in, imported only now; None for a task that is given by a file."""
    if task.endswith(".toml"):
        return None
    if task not in TASKS and ":" not in task:
        raise UnknownName("task", task, TASKS)
    place = TASKS[task].loader if task in TASKS else task
    imported(place)
    return sys.modules[place.partition(":")[0]]
