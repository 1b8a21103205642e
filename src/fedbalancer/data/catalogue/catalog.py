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
    """Counts of a loaded task at one scale.

    Args:
        task: Name of the task.
        variant: Name of the data set.
        scale: Scale at which the task was loaded.
        users: Number of training clients.
        samples: Number of training samples.
        test_samples: Number of test samples.
        labels: Number of distinct labels.
    """

    task: str
    variant: str
    scale: str
    users: int
    samples: int
    test_samples: int
    labels: int


class DiskUsage(NamedTuple):
    """Number, total size and last change of the files of a source."""

    files: int
    size_bytes: int
    changed_ns: int


def inspect(task: str, source: Source | None, scale: str = "small") -> Facts:
    """Load a task and check all its samples.

    Args:
        task: Name of the task.
        source: Source of its data. None for a task without files.
        scale: Scale of the task.

    Raises:
        FedBalancerError: If the data cannot be loaded or used.
    """
    variant = None if source is None else source.variant
    try:
        return count_facts(load_task(task, scale=scale, variant=variant), task, scale)
    except FedBalancerError:
        raise
    except Exception as error:
        raise BadData(f"{_data_name(task, variant)} cannot be read: {type(error).__name__}: {error}") from error


def count_facts(loaded: Task, name: str, scale: str) -> Facts:
    """Check and count the samples of a loaded task.

    Args:
        loaded: The task.
        name: Name of the task.
        scale: Scale at which it was loaded.

    Raises:
        BadData: If a sample cannot be used for training.
    """
    labels: set[float] = set()
    for client in loaded.clients:
        samples = check_samples(loaded.samples(client), f"client {client!r}", loaded.classes)
        check_alike({TEST: loaded.test, f"client {client!r}": samples})
        labels.update(np.unique(samples[1]).tolist())
    labels.update(np.unique(loaded.test[1]).tolist())
    sizes = loaded.sizes
    return Facts(name, loaded.variant, scale, len(sizes), sum(sizes.values()), len(loaded.test[1]), len(labels))


def measure_files(paths: Sequence[Path]) -> DiskUsage:
    """Return number, total size and last change of the files at and below the paths."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else (path,)) if file.is_file()]
    stats = [file.stat() for file in files]
    return DiskUsage(
        len(files), sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)
    )


def save_facts(facts: Facts, source: Source) -> None:
    """Save the facts for `load_facts`. Errors of the disk are ignored."""
    note = _note_path(source, facts.scale, measure_files(source.paths))
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, asdict(facts))


def load_facts(source: Source, usage: DiskUsage) -> Facts | None:
    """Return the saved facts of these files, at the largest scale that was checked; None if there are none."""
    for scale in reversed(SCALES):
        try:
            return Facts(**json.loads(_note_path(source, scale, usage).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
    return None


def _note_path(source: Source, scale: str, usage: DiskUsage) -> Path:
    state = [source.task, source.variant, scale, [str(path) for path in source.paths], usage]
    return cache_folder() / "facts" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]}.json"


def _data_name(task: str, variant: str | None) -> str:
    return f"task {task!r}" if variant is None else f"variant {variant!r} of task {task!r}"


PRESENT, PARTLY, ABSENT = "yes", "in part", "no"
BUILT_IN = "built in"


@dataclass(frozen=True)
class Row:
    """One row of `fedbalancer data list`. None means unknown.

    Args:
        task: Name of the task.
        variant: Name of the data set.
        kind: "official", "stand-in" or "built in".
        present: Whether the files exist: "yes", "in part" or "no".
        users: Number of training clients.
        samples: Number of training samples.
        scale: Scale at which users and samples were counted.
        size_bytes: Size of the files.
        licence: Licence of the data.
        citation: What to cite.
        title: Description in one line.
        files: Required files.
    """

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
    """Return the sources of a task, the official one first.

    These are the `SOURCES` of the module with the task's loader. A task without files has none.
    """
    module = _import_module(task)
    return tuple(getattr(module, "SOURCES", ()))


def get_source(task: str, variant: str | None = None) -> Source:
    """Return a source of a task, whether its files exist or not.

    Args:
        task: Name of the task.
        variant: Name of the variant. None: the official one.

    Raises:
        BadSetting: If the task has no data files.
        UnknownName: If there is no such variant.
    """
    sources = get_sources(task)
    if not sources:
        raise BadSetting(f"task {task!r} has no data files; there is nothing to download, import or check")
    return find_source(sources, variant)


def iterate_sources() -> Iterator[tuple[str, Source | None]]:
    """Yield every built-in task with each of its sources, or with None if it has no files."""
    for task in TASKS:
        for source in get_sources(task) or (None,):
            yield task, source


def _import_module(task: str) -> Any:
    """Return the module with the task's loader; None for a task file."""
    if task.endswith(".toml"):
        return None
    if task not in TASKS and ":" not in task:
        raise UnknownName("task", task, TASKS)
    place = TASKS[task].loader if task in TASKS else task
    import_attribute(place)
    return sys.modules[place.partition(":")[0]]


def list_data() -> list[Row]:
    """Return the rows of all tasks. Only tasks without files are loaded."""
    return [_built_in_row(task) if source is None else _source_row(task, source) for task, source in iterate_sources()]


def _source_row(task: str, source: Source) -> Row:
    existing = [path for path in source.paths if path.exists()]
    present = ABSENT if not existing else PRESENT if len(existing) == len(source.paths) else PARTLY
    usage = measure_files(existing)
    facts = load_facts(source, usage) if present == PRESENT else None
    return Row(
        task=task,
        variant=source.variant,
        kind=source.kind,
        present=present,
        users=facts.users if facts else None,
        samples=facts.samples if facts else None,
        scale=facts.scale if facts else None,
        size_bytes=usage.size_bytes if existing else None,
        licence=source.licence,
        citation=source.citation,
        title=source.title,
        files=source.files,
    )


def _built_in_row(task: str) -> Row:
    title = TASKS[task].title
    try:
        facts = inspect(task, None)
    except FedBalancerError:  # an optional package is not installed
        return Row(task, "", BUILT_IN, ABSENT, None, None, None, None, "", "", title, ())
    return Row(task, "", BUILT_IN, PRESENT, facts.users, facts.samples, facts.scale, None, "", "", title, ())


@dataclass(frozen=True)
class Check:
    """Result of loading one data set.

    Args:
        task: Name of the task.
        variant: Name of the data set.
        facts: Its counts. None if it could not be loaded.
        error: The error, in one line.
    """

    task: str
    variant: str
    facts: Facts | None
    error: str = ""


def check_all(task: str | None = None, scale: str = "small") -> list[Check]:
    """Load and check all data on this computer.

    Args:
        task: Name of the task. None: all tasks.
        scale: Scale of the tasks.

    Raises:
        MissingData: If a named task has no data on this computer.
    """
    tasks = TASKS if task is None else (task,)
    checks = [_check(name, source, scale) for name in tasks for source in _existing_sources(name)]
    if task is not None and not checks:
        files = " or ".join(", ".join(map(str, source.paths)) for source in get_sources(task))
        raise MissingData(f"there is no data of task {task!r}: neither {files}; run: fedbalancer data get {task}")
    return checks


def _existing_sources(task: str) -> list[Source | None]:
    """Return the sources with existing files; None for a task without files."""
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
