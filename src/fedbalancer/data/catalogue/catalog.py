"""The data of every task: which sources exist, which are on this computer, and whether they load."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting, FedBalancerError, MissingData, UnknownName
from fedbalancer.core.files import cache_folder, write_json
from fedbalancer.core.task import TEST, check_alike, check_samples
from fedbalancer.data.registry import SCALES, TASKS, import_attribute, load_task
from fedbalancer.data.source import Source, find_source
from fedbalancer.data.task import Task


@dataclass(frozen=True)
class Facts:
    """Users and samples to train on, samples to test on, and different labels, at one scale."""

    task: str
    variant: str
    scale: str
    users: int
    samples: int
    test_samples: int
    labels: int


class Disk(NamedTuple):
    """What the files of a source are on disk."""

    files: int
    size_bytes: int
    changed_ns: int


def inspect(task: str, source: Source | None, scale: str = "small") -> Facts:
    """Load a task and look at every sample of it. Whatever its loader stumbles over is an error of ours."""
    variant = None if source is None else source.variant
    try:
        return count(load_task(task, scale=scale, variant=variant), task, scale)
    except FedBalancerError:
        raise
    except Exception as error:
        raise BadData(f"{_called(task, variant)} cannot be read: {type(error).__name__}: {error}") from error


def count(loaded: Task, name: str, scale: str) -> Facts:
    """The facts of a loaded task; raises `BadData` for a sample that cannot be trained on."""
    labels: set[float] = set()
    for client, samples in loaded.clients.items():
        check_samples(samples, f"client {client!r}", loaded.classes)
        check_alike({TEST: loaded.test, f"client {client!r}": samples})
        labels.update(np.unique(samples[1]).tolist())
    labels.update(np.unique(loaded.test[1]).tolist())
    sizes = loaded.sizes
    return Facts(name, loaded.variant, scale, len(sizes), sum(sizes.values()), len(loaded.test[1]), len(labels))


def disk(paths: Sequence[Path]) -> Disk:
    """How many files there are below the paths, how large they are, and when the last one changed."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else (path,)) if file.is_file()]
    stats = [file.stat() for file in files]
    return Disk(len(files), sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0))


def save_facts(facts: Facts, source: Source) -> None:
    """Keep the facts for `load_facts`; that this is not possible does not matter."""
    note = _note(source, facts.scale, disk(source.paths))
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, asdict(facts))


def load_facts(source: Source, at: Disk) -> Facts | None:
    """What was last remembered of these files, at the largest scale that was looked at."""
    for scale in reversed(SCALES):
        try:
            return Facts(**json.loads(_note(source, scale, at).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
    return None


def _note(source: Source, scale: str, at: Disk) -> Path:
    state = [source.task, source.variant, scale, [str(path) for path in source.paths], at]
    return cache_folder() / "facts" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]}.json"


def _called(task: str, variant: str | None) -> str:
    return f"task {task!r}" if variant is None else f"variant {variant!r} of task {task!r}"


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


def get_sources(task: str) -> tuple[Source, ...]:
    """The sources of a task, the official one first; none for a task that needs no files, or for one of your own that
    does not say."""
    module = _module(task)
    return tuple(getattr(module, "SOURCES", ()))


def get_source(task: str, variant: str | None = None) -> Source:
    """The variant of that name, or the official one; it need not be there."""
    sources = get_sources(task)
    if not sources:
        raise BadSetting(f"task {task!r} has no data files of its own; there is nothing to fetch, import or check")
    return find_source(sources, variant)


def catalog() -> Iterator[tuple[str, Source | None]]:
    """Every task of the registry with each of its sources, or with None if it has no files."""
    for task in TASKS:
        for source in get_sources(task) or (None,):
            yield task, source


def _module(task: str) -> Any:
    """The module that the task's loader is in, imported only now; None for a task that is given by a file."""
    if task.endswith(".toml"):
        return None
    if task not in TASKS and ":" not in task:
        raise UnknownName("task", task, TASKS)
    place = TASKS[task].loader if task in TASKS else task
    import_attribute(place)
    return sys.modules[place.partition(":")[0]]


def list_data() -> list[Row]:
    """The rows of all tasks. Nothing is loaded but the tasks that need no files."""
    return [_built_in(task) if source is None else _row(task, source) for task, source in catalog()]


def _row(task: str, source: Source) -> Row:
    here = [path for path in source.paths if path.exists()]
    present = ABSENT if not here else PRESENT if len(here) == len(source.paths) else PARTLY
    at = disk(here)
    facts = load_facts(source, at) if present == PRESENT else None
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


@dataclass(frozen=True)
class Check:
    """What came of loading one data set: facts or an error in one line."""

    task: str
    variant: str
    facts: Facts | None
    error: str = ""


def check_all(task: str | None = None, scale: str = "small") -> list[Check]:
    """Load what is here of one task or of all. A named task of which nothing is here is `MissingData`."""
    tasks = TASKS if task is None else (task,)
    checks = [_check(name, source, scale) for name in tasks for source in _present(name)]
    if task is not None and not checks:
        files = " or ".join(", ".join(map(str, source.paths)) for source in get_sources(task))
        raise MissingData(f"no data of task {task!r} is here: neither {files}; type: fedbalancer data get {task}")
    return checks


def _present(task: str) -> list[Source | None]:
    """Sources that are here, if only in part; None for a task that needs no files."""
    sources = get_sources(task)
    if not sources:
        return [None]
    return [source for source in sources if any(path.exists() for path in source.paths)]


def _check(task: str, source: Source | None, scale: str) -> Check:
    variant = "" if source is None else source.variant
    try:
        facts = inspect(task, source, scale)
    except FedBalancerError as error:
        return Check(task, variant, None, " ".join(str(error).split()))
    if source is not None:
        save_facts(facts, source)
    return Check(task, variant, facts)
