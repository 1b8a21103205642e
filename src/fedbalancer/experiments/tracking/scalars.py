"""The numbers of a row that a tracker can draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def scalars(row: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The finite numbers of a row, but not the round, which is the step.

    >>> scalars({"round": 3, "deadline_s": math.inf, "completed": 5, "schedule": "rounds"}, "round/")
    {'round/completed': 5.0}
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}
    return {prefix + name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as one level of dotted names.

    >>> dict(flat({"pace": {"window": 20}}))
    {'pace.window': '20'}
    """
    if not isinstance(value, Mapping):
        yield prefix, str(value)
        return
    for key, item in value.items():
        yield from flat(item, f"{prefix}.{key}" if prefix else str(key))


def run_name(manifest: Mapping[str, Any]) -> str:
    """What a tracker calls the run."""
    task = manifest.get("task")
    name = task.get("name") if isinstance(task, Mapping) else task
    return f"{name} {manifest.get('method')} seed {manifest.get('seed')}"
