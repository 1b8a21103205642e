"""What was understood of a task, on one screen: shown before a run of one's own data starts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedbalancer.core.task import Task

WIDTH = 110
_NAMES_SHOWN = 8


def describe(task: Task, overrides: Mapping[str, Any] | None = None) -> str:
    """Clients, labels, features, test, model and settings (with what the command line changes about them)."""
    sizes = list(task.sizes.values())
    settings = {**task.settings(), **(overrides or {})}
    settings["clients_per_round"] = min(settings["clients_per_round"], len(sizes))
    rows = {
        "task": _joined(task.name, task.variant, f"from {task.notes['source']}" if "source" in task.notes else ""),
        "clients": f"{len(sizes):,} with {_spread(sizes)} samples, {sum(sizes):,} in all{_note(task, 'clients')}",
        "labels": _labels(task),
        "features": _features(task),
        "test": _test(task),
        "model": _model(task),
        "settings": ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None),
    }
    return "\n".join(_wrapped(title, text) for title, text in rows.items())


def _wrapped(title: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{title:10}", subsequent_indent=" " * 10)


def _spread(values: Sequence[int]) -> str:
    return f"{min(values):,} / {np.median(values):,.0f} / {max(values):,} (min / median / max)"


def _note(task: Task, about: str) -> str:
    return f"; {task.notes[about]}" if about in task.notes else ""


def _labels(task: Task) -> str:
    if task.classes is None:
        return f"{np.asarray(task.test[1]).dtype} of shape {np.asarray(task.test[1]).shape[1:]} a sample"
    kinds = [np.unique(labels) for _, labels in task.clients.values()]
    seen = np.unique(np.concatenate(kinds))
    names = task.notes.get("labels")
    shown = _some([names[label] for label in seen]) if names else f"{seen.min()} to {seen.max()}"
    unseen = np.setdiff1d(task.test[1], seen)
    warning = f"; only in the test: {_some(names[u] if names else str(u) for u in unseen)}" if len(unseen) else ""
    have = _spread([len(kind) for kind in kinds])
    return f"{task.classes} classes, {len(seen)} of them seen in training ({shown}); a client has {have}{warning}"


def _features(task: Task) -> str:
    arrays = [np.asarray(features) for features, _ in task.clients.values()]
    low, high = min(array.min() for array in arrays), max(array.max() for array in arrays)
    shape = arrays[0].shape[1:]
    sides = " x ".join(str(side) for side in shape) if shape else "1"
    return f"{sides} a sample, {arrays[0].dtype}, from {low:.4g} to {high:.4g}"


def _test(task: Task) -> str:
    held_out = task.notes.get("held_out")
    users = f" of {len(held_out)} held-out users: {_some(held_out)}" if held_out else _note(task, "test")
    return f"{len(task.test[1]):,} samples{users}"


def _model(task: Task) -> str:
    from fedbalancer.data.own.models import BuiltIn

    made = task.model.func if isinstance(task.model, partial) else task.model
    name = str(made) if isinstance(made, BuiltIn) else f"{made.__module__}:{getattr(made, '__qualname__', '')}"
    if find_spec("torch") is None:
        return f"{name}: how many parameters is known with PyTorch only"
    from fedbalancer.training.flat import build

    count = sum(parameter.numel() for parameter in build(task.model).parameters())
    return f"{name}: {count:,} parameters"


def _some(names: Any) -> str:
    everything = [str(name) for name in names]
    more = len(everything) - _NAMES_SHOWN
    return ", ".join(everything[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
