"""Method names that include the policies which the settings put into slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import merge, resolve
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import canonical_name, with_slots
from fedbalancer.methods.table import Method, check_method_name


def named_in_full(base: RunSpec, methods: Sequence[str | Method]) -> tuple[RunSpec, list[str | Method]]:
    """Move policies from the settings into the names of the methods.

    So a baseline with another deadline does not appear under its plain name, and the budget is that of the published
    method.

    Args:
        base: What all runs have in common.
        methods: Method names or objects.

    Returns:
        The runs without these settings, and the new names.

    Raises:
        BadSetting: If a method is an object, which has its policies already.
        UnknownName: If a method is unknown.
    """
    slots = _policies(base.overrides)
    named = [with_slots(method, slots) if slots and isinstance(method, str) else method for method in methods]
    for method in named:
        if isinstance(method, str):
            check_method_name(method)  # before the task is loaded
    if not slots:
        return base, named
    if not all(isinstance(method, str) for method in methods):
        raise BadSetting(
            f"settings cannot replace the policies ({', '.join(slots)}) of a Method object; pass them to "
            "fedbalancer.method(..., deadline=...)"
        )
    settings = {key: value for key, value in merge(base.overrides).items() if key not in slots}
    return replace(base, method=named[0], settings=settings), named


def full_method_name(method: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a method, including policies that the settings put into its slots."""
    slots = _policies(settings)
    return with_slots(method, slots) if slots else canonical_name(method)


def _policies(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that replace whole policies, by slot."""
    resolved = resolve(settings).policies
    for slot in SLOTS:
        if slot in resolved and not isinstance(resolved[slot], str):
            raise BadSetting(f"setting {slot} = {resolved[slot]!r} must be a policy, as in {slot}=package.module:Class")
    return {slot: resolved[slot] for slot in SLOTS if slot in resolved}
