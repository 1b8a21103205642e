"""From one table of features and labels to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import TEST, Samples
from fedbalancer.data.own.build import assemble
from fedbalancer.data.own.models import Model
from fedbalancer.data.own.split import split_notes, split_rows
from fedbalancer.data.tasks.task import Task


def from_table(
    samples: Samples,
    users: NDArray[Any] | None,
    test: Samples | None,
    model: Model,
    classes: int | None,
    split: Mapping[str, Any],
    settings: Mapping[str, Any],
    where: str,
) -> Task:
    """The task of a table that was read; `where` is what errors call it."""
    features, labels = samples
    check_table(features, labels, users, where)
    if test is not None:
        check_table(*test, None, TEST)
    rows = split_rows(labels, users, split, test is not None, where)
    if test is None:
        assert rows.test is not None
        test = features[rows.test], labels[rows.test]
    clients = {client: (features[chosen], labels[chosen]) for client, chosen in rows.clients.items()}
    notes = {"source": where, **split_notes(split, rows.held_out, users is not None, rows.test is None)}
    return assemble(clients, test, model, classes, settings, notes)


def pair(samples: Any, where: str) -> Samples:
    """Two arrays, the first one of numbers."""
    try:
        features, labels = (np.asarray(part) for part in samples)
    except (TypeError, ValueError) as error:
        raise BadData(f"{where} must be (features, labels), two arrays of as many rows, all of one shape") from error
    if features.ndim == 0 or labels.ndim == 0:
        raise BadData(f"{where} must be (features, labels), two arrays with one row per sample, not single values")
    if features.dtype.kind not in "iubf":
        raise BadData(f"{where} has features of type {features.dtype}; they must be numbers")
    return features, labels


def check_table(features: NDArray[Any], labels: NDArray[Any], users: NDArray[Any] | None, where: str) -> None:
    """What can be told of the whole table, with the numbers of its rows; later all is known by client."""
    if len(features) != len(labels):
        raise BadData(f"{where} has {len(features)} rows of features but {len(labels)} labels")
    if len(labels) == 0:
        raise BadData(f"{where} has no samples")
    if features.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))
        if len(bad):
            whose = f" (user {str(users[bad[0]])!r})" if users is not None and len(users) == len(labels) else ""
            raise BadData(f"{where} has a NaN or infinite feature in row {bad[0]}{whose}")
