"""Whose code a run would import: what a folder names is run only if its user has run it before, or says so now.

A run folder may come from anybody, and names its task, model and policies. What is of this project is known; all else
is code that going on would run, so it is shown with the place that it would come from. Code that a user started a run
with is remembered in the cache folder, so that nobody is asked about what is their own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from fedbalancer.core.errors import UntrustedCode
from fedbalancer.core.files import cache_folder, write_text
from fedbalancer.data.own.toml import model_name
from fedbalancer.data.registry import TASKS
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import parse_method_name

EVERYTHING = None
"""For whom trusts whatever a folder names."""


def code_of(spec: RunSpec, methods: Sequence[object] = ()) -> tuple[str, ...]:
    """The code that is not ours and that a run of this spec, or of these methods, would import: each in a sentence."""
    names = [name for name in (spec.method, *methods) if isinstance(name, str)]
    slots = [*_slots(spec.overrides), *(slot for name in names for slot in parse_method_name(name).slots.items())]
    policies = [
        f"policy {text} of slot {slot}, {_origin(text)}" for slot, text in slots if ":" in str(text).partition("(")[0]
    ]
    return tuple(dict.fromkeys([*_of_task(spec.task), *policies, *_of_attacks(spec.overrides)]))


def check_trusted(code: Sequence[str], trusted: Collection[str] | None = ()) -> None:
    """Raise `UntrustedCode` if there is any that is neither among the trusted nor was started here before."""
    unknown = untrusted(code, trusted)
    if unknown:
        raise UntrustedCode(
            f"going on would run code that the folder names: {'; '.join(unknown)}; if you know it, say so with --trust "
            "(in Python: trust=True)"
        )


def untrusted(code: Sequence[str], trusted: Collection[str] | None = ()) -> list[str]:
    """What of the code was not started here before and is not among the trusted."""
    return [] if trusted is None else [each for each in code if each not in trusted and not _note(each).is_file()]


def remember(code: Sequence[str]) -> None:
    """Note that the user started a run with this code, which is then theirs to go on with."""
    with suppress(OSError):  # then they are asked
        for each in code:
            _note(each).parent.mkdir(parents=True, exist_ok=True)
            write_text(_note(each), each + "\n")


def leave_out_working_folder() -> None:
    """From now on, nothing is imported because it lies in the folder in which the command was typed."""
    wanted = [Path(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(place)]
    if sys.path and sys.path[0] and Path(sys.path[0]) == Path.cwd() and Path.cwd() not in wanted:
        del sys.path[0]  # put there by python -m
    sys.path[:] = [place for place in sys.path if os.path.isabs(place)]


def _of_task(task: object) -> Iterator[str]:
    if not isinstance(task, str) or task in TASKS:
        return
    if not task.endswith(".toml"):
        yield f"task {task}, {_origin(task)}"
    elif ":" in (model := model_name(Path(task))):
        yield f"model {model} of the task file {task}, {_origin(model, str(Path(task).parent.resolve()))}"


def _slots(settings: Mapping[str, object]) -> list[tuple[object, object]]:
    slots = settings.get("slots")
    return list(slots.items()) if isinstance(slots, Mapping) else []


def _of_attacks(settings: Mapping[str, object]) -> list[str]:
    attacks = settings.get("attacks")
    texts = [str(each).rpartition(":")[0] for each in attacks] if isinstance(attacks, list | tuple) else []
    return [f"attack {text}, {_origin(text)}" for text in texts if ":" in text.partition("(")[0]]


def _origin(place: object, *beside: str) -> str:
    """Where the module in "package.module:thing" would come from; nothing is imported to find out."""
    package = str(place).partition(":")[0].partition(".")[0]
    if package in sys.builtin_module_names:
        return "from Python itself"
    try:
        found = PathFinder.find_spec(package, [*sys.path, *beside])
    except (ImportError, ValueError):
        found = None
    if found is None:
        return "from a place that is not on the Python path"
    return f"from {found.origin or next(iter(found.submodule_search_locations or ['an unknown place']))}"


def _note(code: str) -> Path:
    return cache_folder() / "trusted" / hashlib.sha256(code.encode(errors="replace")).hexdigest()[:32]
