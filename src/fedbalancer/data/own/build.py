"""The last steps that all kinds of data share: labels, classes, model, task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbalancer.core.task import TEST, Samples, check_samples, check_shapes
from fedbalancer.data.own.labels import count_classes, numbered
from fedbalancer.data.own.models import Model, make_factory, ready
from fedbalancer.data.tasks.task import Task


def assemble(
    clients: Mapping[str, Samples],
    test: Samples,
    model: Model,
    classes: int | None,
    settings: Mapping[str, Any],
    notes: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
) -> Task:
    """The task; `places` says where a client's data are from, for the errors."""
    places = places if places is not None else {}
    parts = {f"client {client!r}{places.get(client, '')}": samples for client, samples in clients.items()}
    parts[TEST] = test
    check_shapes(parts)
    labels, names = numbered([(where, y) for where, (_, y) in parts.items()], callable(settings.get("loss")))
    placed = list(zip(parts, labels, strict=True))
    count = count_classes(placed, classes)
    features = [np.asarray(x) for x, _ in parts.values()]
    for where, x, y in zip(parts, features, labels, strict=True):
        check_samples((x, y), where, count)
    factory = make_factory(model, features, count)
    done = [(ready(factory, x), y) for x, y in zip(features, labels, strict=True)]
    settings = {"clients_per_round": min(10, len(clients)), **settings}
    notes = {**notes, **({"labels": names} if names else {})}
    return Task(dict(zip(clients, done[:-1], strict=True)), done[-1], factory, classes=count, notes=notes, **settings)
