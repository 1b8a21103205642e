"""The slots of a method: what each takes, how an own policy is found by name, and what does not go together."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.protocols import (
    Aggregator,
    ClientSelector,
    Compressor,
    DeadlinePolicy,
    PacePolicy,
    SampleSelector,
    Summarizer,
    ThresholdPolicy,
    WorkPolicy,
)

SLOTS: dict[str, type] = {
    "clients": ClientSelector,
    "samples": SampleSelector,
    "deadline": DeadlinePolicy,
    "work": WorkPolicy,
    "aggregate": Aggregator,
    "threshold": ThresholdPolicy,
    "pace": PacePolicy,
    "summary": Summarizer,
    "compress": Compressor,
}


def check_composition(method: Any) -> None:
    """Refuse a `Method` whose choices do not go together, before anything runs.

    A policy that steers by the clients' losses says so with `needs_losses = True`, a summary that has none with
    `releases_losses = False`; and any policy may have a method `refuses(method) -> str | None` that says in a sentence
    why it cannot work beside the other choices.
    """
    for slot in SLOTS:
        if why := _refusal(method, slot):
            raise BadSetting(f"method {method.name!r} cannot run: {why}")


def _refusal(method: Any, slot: str) -> str | None:
    policy, summary = getattr(method, slot), method.summary
    if getattr(policy, "needs_losses", False) and not getattr(summary, "releases_losses", True):
        return f"{type(policy).__name__} steers by the clients' losses, which {type(summary).__name__} does not release"
    refuses = getattr(policy, "refuses", None)
    return str(why) if refuses is not None and (why := refuses(method)) else None


def load_policy(slot: str, path: str) -> Any:
    """An own policy named as `package.module:Class`, made without arguments and checked for its slot's methods."""
    if slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    module_name, colon, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute) if colon else None
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        advice = " (install its package, or put its folder on PYTHONPATH)" if _is_absent(error, module_name) else ""
        raise BadSetting(f"slots.{slot} = {path!r}: {error}{advice}") from error
    if found is None:
        raise BadSetting(f"slots.{slot} = {path!r} must look like package.module:Class")
    try:
        policy = found() if inspect.isclass(found) else found
    except TypeError as error:
        raise BadSetting(f"slots.{slot} = {path!r} cannot be made without arguments: {error}") from error
    if not isinstance(policy, SLOTS[slot]):
        needed = sorted(name for name in dir(SLOTS[slot]) if not name.startswith("_"))
        raise BadSetting(f"slots.{slot} = {path!r} is no policy for that slot; it needs {', '.join(needed)}")
    return policy


def _is_absent(error: Exception, module_name: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and module_name.startswith(str(error.name))
