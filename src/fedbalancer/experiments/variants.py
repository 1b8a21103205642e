"""Policies that the settings put into a slot of every method appear in each method's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import merge, resolve
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import with_slots
from fedbalancer.methods.table import Method, check_method_name


def named_in_full(base: RunSpec, methods: Sequence[str | Method]) -> tuple[RunSpec, list[str | Method]]:
    """Move policies from the settings into the names of the methods.

    A baseline with another deadline must not appear under its plain name, and the budget is that of the published
    method.

    Args:
        base: The runs, with settings that may have policies: `{"deadline": "my.module:Mine"}`.
        methods: The methods of the runs.

    Returns:
        The runs without these settings, and the methods with longer names.

    Raises:
        UnknownName: If a method or setting does not exist.
        BadSetting: If a method was made in Python, so that its policies are chosen already.
    """
    resolve(base.overrides)
    slots = {key: value for key, value in merge(base.overrides).items() if key in SLOTS}
    if slots and not all(isinstance(method, str) for method in methods):
        raise BadSetting(
            f"settings have policies ({', '.join(slots)}), but a method made in Python has its policies already; pass "
            "them to it: fedbalancer.method(..., deadline=...)"
        )
    named = [with_slots(method, slots) if slots and isinstance(method, str) else method for method in methods]
    for method in named:
        if isinstance(method, str):
            check_method_name(method)  # before the task is prepared, which takes time
    if not slots:
        return base, named
    settings = {key: value for key, value in merge(base.overrides).items() if key not in slots}
    return replace(base, method=named[0], settings=settings), named
