"""The built-in tasks by name, and tasks by import path or task file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.data.task import Task

SCALES = ("small", "paper")


@dataclass(frozen=True)
class TaskEntry:
    """A built-in task.

    Args:
        name: Name of the task.
        title: Description in one line.
        loader: Import path "package.module:function" of a function that returns the task.
    """

    name: str
    title: str
    loader: str


def _by_name(*entries: TaskEntry) -> Mapping[str, TaskEntry]:
    return MappingProxyType({entry.name: entry for entry in entries})


TASKS = _by_name(
    TaskEntry("watch", "7 shoulder exercises on the smartwatches of 10 people", "fedbalancer.data.tasks.watch:load"),
    TaskEntry(
        "synthetic",
        "logistic regression on any number of heterogeneous users",
        "fedbalancer.data.tasks.synthetic:load",
    ),
    TaskEntry("femnist", "62 handwritten characters of many writers (FEMNIST)", "fedbalancer.data.tasks.femnist:load"),
    TaskEntry("celeba", "smiling or not, on photographs of celebrities (CelebA)", "fedbalancer.data.tasks.celeba:load"),
    TaskEntry("har", "6 activities on the smartphones of 30 people (UCI-HAR)", "fedbalancer.data.tasks.har:load"),
    TaskEntry("shakespeare", "the next character in the text of a role", "fedbalancer.data.tasks.shakespeare:load"),
    TaskEntry("reddit", "the next word in the comments of an author", "fedbalancer.data.tasks.reddit:load"),
)


def load_task(name: str, *, scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load a task.

    Args:
        name: Name of a built-in task, path of a task file (.toml), or import path "package.module:name" of a `Task` or
            of a function that returns one. The function receives `scale`, `users` and `variant` if it has parameters
            of these names.
        scale: "small" or "paper".
        users: Number of training clients. None: all.
        variant: Name of the data set. None: the official data if they are present, otherwise a stand-in.

    Raises:
        UnknownName: If there is no such task, scale or variant.
        MissingData: If the data are not on this computer.
        BadData: If the data cannot be used.

    >>> load_task("synthetic", users=3).sizes
    {'u00000': 67, 'u00001': 49, 'u00002': 360}
    """
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    if name.endswith(".toml"):
        from fedbalancer.data.own.toml import load_toml

        return load_toml(Path(name), users, variant)
    if ":" not in name and name not in TASKS:
        raise UnknownName("task", name, TASKS)
    place = TASKS[name].loader if name in TASKS else name
    thing = import_attribute(place)
    options = {"scale": scale, "users": users, "variant": variant}
    task = thing if isinstance(thing, Task) else _call(thing, name, options)
    if not isinstance(task, Task):
        raise BadData(
            f"{place} has type {type(task).__name__}; it must be a fedbalancer Task or a function returning one"
        )
    return task


def import_attribute(place: str, kind: str = "task") -> Any:
    """Import an object.

    Args:
        place: Import path "package.module:name".
        kind: Kind of the object, for errors.

    Raises:
        BadData: If the module does not exist.
        UnknownName: If the module has no such name.
    """
    module, _, attribute = place.partition(":")
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        raise BadData(f"{kind} {place!r}: there is no module {error.name!r} on the Python path") from error
    except (ValueError, TypeError) as error:
        raise BadData(f"{kind} {place!r} is not of the form package.module:function") from error
    if not hasattr(imported, attribute):
        names = [name for name in vars(imported) if not name.startswith("_")]
        raise UnknownName(f"{kind} function in {module}", attribute, names)
    return getattr(imported, attribute)


def _call(function: Any, place: str, options: Mapping[str, Any]) -> Any:
    if not callable(function):
        return function
    accepted = signature(function).parameters
    if options["variant"] is not None and "variant" not in accepted:
        raise BadSetting(f"task {place!r} has no variants; omit --variant {options['variant']}")
    return function(**{key: value for key, value in options.items() if key in accepted})
