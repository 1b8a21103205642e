"""Trust in code that a run folder names.

A run folder may come from anyone, and names its task, model and policies. If these are not part of this project,
resuming the run imports the code. Such code runs only if the user has started a run with it before, or trusts it
explicitly. Code with which the user starts a run is remembered in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import UntrustedCode
from fedbalancer.core.files import cache_folder, write_text
from fedbalancer.core.settings import merge
from fedbalancer.data.own.toml import model_name
from fedbalancer.data.registry import TASKS
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import parse_method_name

EVERYTHING = None
"""Trust all code that a folder names."""


def code_of(spec: RunSpec, methods: Sequence[object] = ()) -> tuple[str, ...]:
    """Return the code outside this project that a run imports.

    Args:
        spec: The run.
        methods: Further methods, as in a comparison.

    Returns:
        One description per object, with the file from which it would be imported.
    """
    names = [name for name in (spec.method, *methods) if isinstance(name, str)]
    slots = [*_slots(spec.overrides), *(slot for name in names for slot in parse_method_name(name).slots.items())]
    policies = [
        f"policy {text} of slot {slot}, {_origin(text)}" for slot, text in slots if ":" in str(text).partition("(")[0]
    ]
    return tuple(dict.fromkeys([*_task_code(spec.task), *policies, *_attack_code(spec.overrides)]))


def check_trusted(code: Sequence[str], trusted: Collection[str] | None = ()) -> None:
    """Check that code may run.

    Args:
        code: The code, as `code_of` describes it.
        trusted: Code that may run besides remembered code; None for all.

    Raises:
        UntrustedCode: If some code is neither trusted nor remembered.
    """
    unknown = find_untrusted(code, trusted)
    if unknown:
        raise UntrustedCode(
            f"the folder names code that is not trusted: {'; '.join(unknown)}; if you trust it, use --trust (in "
            "Python: trust=True)"
        )


def find_untrusted(code: Sequence[str], trusted: Collection[str] | None = ()) -> list[str]:
    """Return the code that is neither remembered nor trusted.

    Args:
        code: The code, as `code_of` describes it.
        trusted: Code that may run besides remembered code; None for all.
    """
    return [] if trusted is None else [each for each in code if each not in trusted and not _marker(each).is_file()]


def remember(code: Sequence[str]) -> None:
    """Remember that the user started a run with this code."""
    with suppress(OSError):  # the user is then asked when resuming
        for each in code:
            _marker(each).parent.mkdir(parents=True, exist_ok=True)
            write_text(_marker(each), each + "\n")


def leave_out_working_folder() -> None:
    """Stop importing modules from the current folder."""
    explicit = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    if sys.path and sys.path[0] and Path(sys.path[0]) == Path.cwd() and Path.cwd() not in explicit:
        del sys.path[0]  # added by python -m
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry)]


def _task_code(task: object) -> Iterator[str]:
    if not isinstance(task, str) or task in TASKS:
        return
    if not task.endswith(".toml"):
        yield f"task {task}, {_origin(task)}"
    elif ":" in (model := model_name(Path(task))):
        yield f"model {model} of the task file {task}, {_origin(model, str(Path(task).parent.resolve()))}"


def _slots(settings: Mapping[str, object]) -> list[tuple[object, object]]:
    return [(key, value) for key, value in merge(settings).items() if key in SLOTS]


def _attack_code(settings: Mapping[str, object]) -> list[str]:
    attacks = settings.get("attacks")
    texts = [str(each).rpartition(":")[0] for each in attacks] if isinstance(attacks, list | tuple) else []
    return [f"attack {text}, {_origin(text)}" for text in texts if ":" in text.partition("(")[0]]


def _origin(path: object, *folders: str) -> str:
    """Return where the module of "package.module:name" would be imported from, without importing it."""
    package = str(path).partition(":")[0].partition(".")[0]
    if package in sys.builtin_module_names:
        return "from Python itself"
    try:
        module = PathFinder.find_spec(package, [*sys.path, *folders])
    except (ImportError, ValueError):
        module = None
    if module is None:
        return "which is not on the Python path"
    return f"from {module.origin or next(iter(module.submodule_search_locations or ['an unknown location']))}"


def _marker(code: str) -> Path:
    return cache_folder() / "trusted" / hashlib.sha256(code.encode(errors="replace")).hexdigest()[:32]
