"""Policies that the settings put into a slot of every method: each method's name says so."""

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
    """The same runs with `slots.*` of the settings in the methods' names instead: a baseline whose deadline is
    another one is not called plainly by its name, and the budget is that of the method as published."""
    for method in methods:
        if isinstance(method, str):
            check_known(method)  # before a task is prepared, which takes time or data that are not there yet
    slots = resolve(base.overrides).slots
    if not slots:
        return base, list(methods)
    if not all(isinstance(method, str) for method in methods):
        raise BadSetting(
            f"settings give policies for slots ({', '.join(slots)}), which a method made in Python has already; give "
            "them to it: fedbalancer.method(..., deadline=...)"
        )
    settings = {key: value for key, value in base.overrides.items() if key != "slots"}
    named: list[str | Method] = [with_slots(method, slots) for method in methods if isinstance(method, str)]
    return replace(base, method=named[0], settings=settings), named


def full_method_name(method: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a method, including policies that the settings put into its slots."""
    slots = resolve(dict(settings)).slots
    return with_slots(method, slots) if slots else canonical_name(method)
