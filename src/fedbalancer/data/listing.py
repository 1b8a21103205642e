"""One row for every data set that a task can have, whether it is here or not."""

from __future__ import annotations

from dataclasses import dataclass

from fedbalancer.data.catalog import catalog
from fedbalancer.data.facts import disk, inspect, recall
from fedbalancer.data.source import Source
from fedbalancer.errors import FedBalancerError
from fedbalancer.tasks.registry import TASKS

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
