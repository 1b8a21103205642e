"""Method names that include the policies which the settings put into slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import resolve
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import canonical_name, with_slots
from fedbalancer.methods.table import Method, check_known


def named_in_full(base: RunSpec, methods: Sequence[str | Method]) -> tuple[RunSpec, list[str | Method]]:
    """Move the policies of `slots.*` settings into the names of the methods.

    So a baseline with another deadline does not appear under its plain name, and the budget is that of the published
    method.

    Args:
        base: What all runs have in common.
        methods: Method names or objects.

    Returns:
        The runs without `slots.*` settings, and the new names.

    Raises:
        BadSetting: If a method is an object, which has its policies already.
        UnknownName: If a method is unknown.
    """
    for method in methods:
        if isinstance(method, str):
            check_known(method)  # before the task is loaded
    slots = resolve(base.overrides).slots
    if not slots:
        return base, list(methods)
    if not all(isinstance(method, str) for method in methods):
        raise BadSetting(
            f"settings cannot replace the policies ({', '.join(slots)}) of a Method object; pass them to "
            "fedbalancer.method(..., deadline=...)"
        )
    settings = {key: value for key, value in base.overrides.items() if key != "slots"}
    named: list[str | Method] = [with_slots(method, slots) for method in methods if isinstance(method, str)]
    return replace(base, method=named[0], settings=settings), named


def full_method_name(method: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a method, including policies that the settings put into its slots."""
    slots = resolve(dict(settings)).slots
    return with_slots(method, slots) if slots else canonical_name(method)
