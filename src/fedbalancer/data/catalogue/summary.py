"""Summaries of a task: its description on one screen, and the number of samples per client and label."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.samples import IGNORED, Ragged, columns_of
from fedbalancer.core.types import IndexArray
from fedbalancer.data.task import Task

WIDTH = 110
_NAMES_SHOWN = 8


def describe_task(task: Task, overrides: Mapping[str, Any] | None = None) -> str:
    """Describe clients, labels, features, test data, model and settings of a task, on one screen.

    Args:
        task: The task.
        overrides: Settings that replace those of the task.
    """
    sizes = list(task.sizes.values())
    settings = {**task.settings(), **(overrides or {})}
    settings["clients_per_round"] = min(settings["clients_per_round"], len(sizes))
    rows = {
        "task": _join(task.name, task.variant, f"from {task.notes['source']}" if "source" in task.notes else ""),
        "clients": f"{len(sizes):,} with {_spread(sizes)} samples, {sum(sizes):,} in total{_note(task, 'clients')}",
        "labels": _labels(task),
        "features": _features(task),
        "test": _test(task),
        "model": _model(task),
        "settings": ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None),
    }
    return "\n".join(_wrap(title, text) for title, text in rows.items())


def _wrap(title: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{title:10}", subsequent_indent=" " * 10)


def _spread(values: Sequence[int]) -> str:
    return f"{min(values):,} / {np.median(values):,.0f} / {max(values):,} (min / median / max)"


def _note(task: Task, about: str) -> str:
    return f"; {task.notes[about]}" if about in task.notes else ""


def _labels(task: Task) -> str:
    if task.classes is None:
        labels = np.asarray(task.test[1])
        return f"{labels.dtype} of shape {labels.shape[1:]} per sample" if labels.size else "none"
    kinds = [_classes(task.labels(client)) for client in task.clients]
    seen = np.unique(np.concatenate(kinds))
    names = task.notes.get("labels")
    shown = _list_some([names[label] for label in seen]) if names else f"{seen.min()} to {seen.max()}"
    unseen = np.setdiff1d(_classes(task.test[1]), seen)
    warning = (
        f"; only in the test data: {_list_some(names[u] if names else str(u) for u in unseen)}" if len(unseen) else ""
    )
    spread = _spread([len(kind) for kind in kinds])
    return f"{task.classes} classes, {len(seen)} of them in the training data ({shown}); {spread} per client{warning}"


def _features(task: Task) -> str:
    parts = [columns_of(task.samples(client)[0]) for client in task.clients]
    described = {name: _column([part[name] for part in parts]) for name in parts[0]}
    return "; ".join(f"{name}: {text}" if name else text for name, text in described.items())


def _column(columns: Sequence[Any]) -> str:
    """Describe one column of features of all clients."""
    arrays = [column.values if isinstance(column, Ragged) else np.asarray(column) for column in columns]
    low = min(array.min() for array in arrays if array.size)
    high = max(array.max() for array in arrays if array.size)
    if isinstance(columns[0], Ragged):
        lengths = np.concatenate([column.lengths for column in columns])
        return f"{lengths.min()} to {lengths.max()} steps per sample, {arrays[0].dtype}, from {low:.4g} to {high:.4g}"
    shape = arrays[0].shape[1:]
    sides = " x ".join(str(side) for side in shape) if shape else "1"
    return f"{sides} per sample, {arrays[0].dtype}, from {low:.4g} to {high:.4g}"


def _classes(labels: Any) -> NDArray[Any]:
    """Return the classes that occur."""
    array = np.asarray(labels)
    return np.unique(array[array != IGNORED])


def _test(task: Task) -> str:
    held_out = task.notes.get("held_out")
    users = f" of {len(held_out)} held-out users: {_list_some(held_out)}" if held_out else _note(task, "test")
    return f"{len(task.test[1]):,} samples{users}"


def _model(task: Task) -> str:
    from fedbalancer.data.own.models import BuiltIn

    model = task.model.func if isinstance(task.model, partial) else task.model
    name = str(model) if isinstance(model, BuiltIn) else f"{model.__module__}:{getattr(model, '__qualname__', '')}"
    if find_spec("torch") is None:
        return f"{name}: install PyTorch to see the number of parameters"
    from fedbalancer.training.tensors import build_module

    parameters = list(build_module(task.model).parameters())
    count = sum(each.numel() for each in parameters)
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    return f"{name}: {count:,} parameters" + (f", of which {trained:,} are trained" if trained < count else "")


def _list_some(names: Any) -> str:
    everything = [str(name) for name in names]
    more = len(everything) - _NAMES_SHOWN
    return ", ".join(everything[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


OTHER = "other"


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """Number of samples per client and label. The largest clients come first.

    Labels with several parts (the tokens of a sequence) are counted one by one. Labels that are not classes (floats)
    are not counted.

    Args:
        title: Name of the task.
        clients: Client ids.
        sizes: Number of samples of each client.
        test_samples: Number of test samples.
        labels: Names of the columns of `counts`. The last one may be "other".
        all_labels: Number of distinct labels.
        counts: Samples by client (row) and label (column).
        distinct: Number of distinct labels of each client.
    """

    title: str
    clients: tuple[str, ...]
    sizes: IndexArray
    test_samples: int
    labels: tuple[str, ...]
    all_labels: int
    counts: IndexArray
    distinct: IndexArray

    def space_clients(self, most: int) -> IndexArray:
        """Return the rows of at most `most` clients, evenly spaced from the largest to the smallest.

        These are single clients, because a mean over clients would look like a client with every label.
        """
        return np.unique(np.linspace(0, len(self.clients) - 1, most).astype(np.int64))


def count_labels(task: Task, most_labels: int = 20) -> LabelCounts:
    """Count the labels of all clients.

    Args:
        task: The task.
        most_labels: Largest number of columns; the rarest labels are combined into "other".
    """
    tallies = {client: _tally(task.labels(client)) for client in task.clients}
    sizes = task.sizes
    order = sorted(sizes, key=lambda client: (-sizes[client], client))
    total: Counter[int] = Counter()
    for tally in tallies.values():
        total.update(tally)
    shown, rest = _choose_labels(total, most_labels)
    columns = [[tallies[client].get(label, 0) for label in shown] for client in order]
    counts = np.array(columns, dtype=np.int64).reshape(len(order), len(shown))
    if rest:
        other = np.array([sum(tallies[client].values()) for client in order]) - counts.sum(axis=1)
        counts = np.column_stack([counts, other])
    return LabelCounts(
        title=f"{task.name} ({task.variant})" if task.variant else task.name,
        clients=tuple(order),
        sizes=np.array([sizes[client] for client in order], dtype=np.int64),
        test_samples=len(task.test[1]),
        labels=(*map(str, shown), *((OTHER,) if rest else ())),
        all_labels=len(total),
        counts=counts,
        distinct=np.array([len(tallies[client]) for client in order], dtype=np.int64),
    )


def _choose_labels(total: Counter[int], most: int) -> tuple[list[int], bool]:
    """Return the labels with their own column, in order, and whether there are others."""
    if len(total) <= most:
        return sorted(total), False
    return sorted(label for label, _ in total.most_common(most - 1)), True


def _tally(labels: NDArray[Any]) -> dict[int, int]:
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        return {}
    values, counts = np.unique(array[array != IGNORED], return_counts=True)
    return dict(zip(_ints(values), _ints(counts), strict=True))


def _ints(values: Iterable[Any]) -> list[int]:
    return [int(value) for value in values]
