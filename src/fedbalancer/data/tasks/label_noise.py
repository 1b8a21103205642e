"""Wrong labels on purpose: how a method does on data that nobody has cleaned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import MadeOnDemand, Samples, Task

_NOTE = "label_noise"
AnyTask = TypeVar("AnyTask", bound=Task)


def with_label_noise(task: AnyTask, share: float) -> AnyTask:
    """The task with about this share of its clients' labels exchanged for another one, each as likely; the same ones
    in every run. The test data stay as they are."""
    if not share or task.notes.get(_NOTE) == share:
        return task
    labels = np.asarray(task.test[1])
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadSetting(f"setting label_noise = {share}: task {task.name!r} has no labels that are one class a sample")
    classes = task.classes or int(labels.max()) + 1
    clients: Mapping[str, Samples] = _Noisy(task.clients, share, classes)
    if isinstance(task.clients, MadeOnDemand):
        clients = _NoisyOnDemand(task.clients, share, classes)
    return replace(task, clients=clients, notes={**task.notes, _NOTE: share})


@dataclass(frozen=True)
class _Noisy(Mapping[str, Samples]):
    clean: Mapping[str, Samples]
    share: float
    classes: int

    def __getitem__(self, client: str) -> Samples:
        features, labels = self.clean[client]
        rng = stream(0, "label noise", 0, client)
        other = (np.asarray(labels) + rng.integers(1, self.classes, len(labels))) % self.classes
        wrong = rng.random(len(labels)) < self.share
        return features, np.where(wrong, other, labels).astype(np.asarray(labels).dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clean)

    def __len__(self) -> int:
        return len(self.clean)


class _NoisyOnDemand(_Noisy):
    """Of clients whose samples are made when they are asked for."""

    @property
    def sizes(self) -> Mapping[str, int]:
        assert isinstance(self.clean, MadeOnDemand)
        return self.clean.sizes
