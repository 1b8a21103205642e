"""`fedbalancer list`: list tasks, methods, devices, policies, attacks, settings and columns."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import Annotated, Any

import typer

from fedbalancer.cli.options import Json
from fedbalancer.core.errors import BadSetting, UnknownName

Rows = list[dict[str, Any]]


def list_(
    what: Annotated[
        str, typer.Argument(help="What to list: tasks, methods, devices, policies, attacks, settings or columns.")
    ] = "methods",
    as_json: Json = False,
) -> None:
    """List tasks, methods, devices, policies, attacks, settings with allowed values, or the columns of tables.

    Example:

        fedbalancer list settings
    """
    if what not in KINDS:
        raise UnknownName("list", what, KINDS)
    rows = KINDS[what]()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in rows[0]:
        # Columns of single words are names to type: they are never cut or wrapped.
        table.add_column(name, overflow="fold", no_wrap=all(" " not in str(row[name]) for row in rows))
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(markup=False).print(table)


def _tasks() -> Rows:
    from fedbalancer.data.registry import TASKS

    return [{"task": entry.name, "what it is": entry.title} for entry in TASKS.values()]


def _methods() -> Rows:
    from fedbalancer.methods.table import BASES, FAMILIES, MODIFIERS

    bases = [{"method": name, "what it is": title} for name, (title, _) in {**BASES, **FAMILIES}.items()]
    own = [{"method": "...[key=value,...]", "what it is": "settings and policies for a method: fedbalancer[w=5]"}]
    return bases + own + [{"method": f"...{name}", "what it is": title} for name, (title, _) in MODIFIERS.items()]


def _devices() -> Rows:
    from fedbalancer.core.cost import PUBLISHED
    from fedbalancer.simulation.devices import LATENCY_MS

    return [
        {
            "latency row": row,
            **{f"{name} ms/batch": f"{mean:.1f} ± {std:.1f}" for name, (mean, std) in classes.items()},
            "batch size": str(PUBLISHED[row].batch_size),
            "MFLOPs/sample": f"{PUBLISHED[row].train_flops / 1e6:.1f}",
        }
        for row, classes in LATENCY_MS.items()
    ]


def _policies() -> Rows:
    """Return all built-in policies, with the methods and modifiers that use them."""
    from fedbalancer.core.contracts import SLOTS
    from fedbalancer.methods.policy_registry import POLICIES, describe_policy
    from fedbalancer.methods.table import BASES, MODIFIERS, method

    kinds = {(slot, kind.__name__): kind for slot in SLOTS for kind in POLICIES[slot].values()}
    users_of: dict[tuple[str, str], list[str]] = {key: [] for key in sorted(kinds)}
    for name in BASES:
        for slot in SLOTS:
            users_of[slot, type(getattr(method(name), slot)).__name__].append(name)
    for modifier, base in product(MODIFIERS, ("fedbalancer", "canter", "prox+1t")):
        with suppress(BadSetting):
            plain, modified = method(base), method(base + modifier)
            for slot in SLOTS:
                users = users_of[slot, type(getattr(modified, slot)).__name__]
                if getattr(modified, slot) != getattr(plain, slot) and modifier not in users:
                    users.append(modifier)
    return [
        {"slot": slot, "policy": name, "used by": ", ".join(users), "what it does": describe_policy(kinds[slot, name])}
        for (slot, name), users in users_of.items()
    ]


def _attacks() -> Rows:
    from fedbalancer.simulation.attacks import ATTACKS

    return [{"attack": name, "what such a client does": title} for name, (title, _) in ATTACKS.items()]


def _settings() -> Rows:
    from fedbalancer.core.fields import field_meanings
    from fedbalancer.core.settings import RUN_KEYS, Settings, allowed
    from fedbalancer.methods.policy_registry import policy_fields

    meanings = field_meanings(Settings)
    run_level = [
        {
            "key": key,
            "default": Settings.model_fields[key].get_default(call_default_factory=True),
            "allowed": allowed(key),
            "meaning": meanings[key],
        }
        for key in RUN_KEYS
    ]
    policy_level = [
        {
            "key": row["key"],
            "default": row["default"],
            "allowed": row["allowed"],
            "meaning": ": ".join(filter(None, [row["policy"], row["meaning"]])),
        }
        for row in policy_fields()
    ]
    return run_level + policy_level


def _columns() -> Rows:
    from fedbalancer.store.rows import TABLES, columns_of

    return [
        {"table": f"{table}.parquet", "column": name, "unit": unit, "meaning": meaning}
        for table, kind in TABLES.items()
        for name, (unit, meaning) in columns_of(kind).items()
    ]


KINDS = {
    "tasks": _tasks, "methods": _methods, "devices": _devices, "policies": _policies, "attacks": _attacks,
    "settings": _settings, "columns": _columns,
}  # fmt: skip
