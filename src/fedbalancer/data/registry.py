"""The tasks by name, and your own by where they are."""

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
    """One line of `fedbalancer list tasks`: `loader` is "package.module:function" of (scale, users) to a `Task`."""

    name: str
    title: str
    loader: str


def _entries(*entries: TaskEntry) -> Mapping[str, TaskEntry]:
    return MappingProxyType({entry.name: entry for entry in entries})


TASKS = _entries(
    TaskEntry("watch", "7 shoulder exercises on the smartwatches of 10 people", "fedbalancer.data.tasks.watch:load"),
    TaskEntry(
        "synthetic",
        "logistic regression on any number of heterogeneous users",
        "fedbalancer.data.tasks.synthetic:load",
    ),
    TaskEntry("femnist", "62 handwritten characters of many people (FEMNIST)", "fedbalancer.data.tasks.femnist:load"),
    TaskEntry("celeba", "who smiles on photographs of celebrities (CelebA)", "fedbalancer.data.tasks.celeba:load"),
    TaskEntry("har", "6 activities on the smartphones of 30 people (UCI-HAR)", "fedbalancer.data.tasks.har:load"),
    TaskEntry("shakespeare", "the next character of what a role says", "fedbalancer.data.tasks.shakespeare:load"),
    TaskEntry("reddit", "the next word of what an author writes", "fedbalancer.data.tasks.reddit:load"),
)


def load_task(name: str, *, scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """The task of that name, or of your own code.

    `name` is one of `TASKS`, or "package.module:thing" where thing is a `Task` or a function that returns one; the
    function is given `scale`, `users` and `variant` if it has parameters of these names. A name that ends in .toml is
    the path of a task file.
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
    task = thing if isinstance(thing, Task) else _called(thing, name, options)
    if not isinstance(task, Task):
        raise BadData(f"{place} gives {type(task).__name__}; it must be a fedbalancer Task or a function returning one")
    return task


def import_attribute(place: str, kind: str = "task") -> Any:
    """What "package.module:thing" names; `kind` is what errors call it."""
    module, _, attribute = place.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise BadData(f"{kind} {place!r}: there is no module {error.name!r} on the Python path") from error
    except (ValueError, TypeError) as error:
        raise BadData(f"{kind} {place!r} is not of the form package.module:function") from error
    if not hasattr(found, attribute):
        raise UnknownName(f"{kind} function in {module}", attribute, [n for n in vars(found) if not n.startswith("_")])
    return getattr(found, attribute)


def _called(function: Any, place: str, options: Mapping[str, Any]) -> Any:
    if not callable(function):
        return function
    accepted = signature(function).parameters
    if options["variant"] is not None and "variant" not in accepted:
        raise BadSetting(f"task {place!r} has no variants; leave out --variant {options['variant']}")
    return function(**{key: value for key, value in options.items() if key in accepted})
