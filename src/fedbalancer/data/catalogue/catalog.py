"""Which data every task can have (the `SOURCES` of the module in which the task is written), and what of it is here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import BadSetting, FedBalancerError, UnknownName
from fedbalancer.data.catalogue.facts import disk, inspect, recall
from fedbalancer.data.registry import TASKS, imported
from fedbalancer.data.source import Source, named

PRESENT, PARTLY, ABSENT = "yes", "in part", "no"
BUILT_IN = "built in"


@dataclass(frozen=True)
class Row:
    """What `fedbalancer data list` says of one data set. None is not known, and `scale` is the one at which users and
    samples were counted."""

    task: str
    variant: str
    kind: str
    present: str
    users: int | None
    samples: int | None
    scale: str | None
    size_bytes: int | None
    licence: str
    citation: str
    title: str
    files: tuple[str, ...]


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


def listing() -> list[Row]:
    """The rows of all tasks. Nothing is loaded but the tasks that need no files."""
    return [_built_in(task) if source is None else _row(task, source) for task, source in catalog()]


def _row(task: str, source: Source) -> Row:
    here = [path for path in source.paths if path.exists()]
    present = ABSENT if not here else PRESENT if len(here) == len(source.paths) else PARTLY
    at = disk(here)
    facts = recall(source, at) if present == PRESENT else None
    return Row(
        task=task,
        variant=source.variant,
        kind=source.kind,
        present=present,
        users=facts.users if facts else None,
        samples=facts.samples if facts else None,
        scale=facts.scale if facts else None,
        size_bytes=at.size_bytes if here else None,
        licence=source.licence,
        citation=source.citation,
        title=source.title,
        files=source.files,
    )


def _built_in(task: str) -> Row:
    title = TASKS[task].title
    try:
        facts = inspect(task, None)
    except FedBalancerError:  # an optional package that is not installed
        return Row(task, "", BUILT_IN, ABSENT, None, None, None, None, "", "", title, ())
    return Row(task, "", BUILT_IN, PRESENT, facts.users, facts.samples, facts.scale, None, "", "", title, ())
