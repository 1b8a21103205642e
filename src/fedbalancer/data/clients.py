"""Mappings of clients to samples: slices of one array, and clients with wrong labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import MadeOnDemand, Samples
from fedbalancer.data.task import Task


@dataclass(frozen=True, eq=False)
class SlicedClients(Mapping[str, Samples]):
    """Client k has the rows after those of the clients before it; nothing is copied: memory-mapped arrays stay shared.

    Such clients are not looked at when a task is made: whoever wrote the arrays has checked them. Only that names and
    rows fit together is checked here.

    >>> import numpy as np
    >>> clients = SlicedClients(("ann", "bob"), (1, 2), np.zeros((3, 4)), np.array([0, 1, 1]))
    >>> clients["bob"][1]
    array([1, 1])
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    features: NDArray[Any]
    labels: NDArray[Any]
    _starts: dict[str, tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.lengths):
            raise BadData(f"there are {len(self.names)} names of clients but {len(self.lengths)} lengths")
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        rows = ends[-1] if ends else 0
        if not rows == len(self.features) == len(self.labels):
            raise BadData(
                f"clients have {rows} samples in all, but there are {len(self.features)} features "
                f"and {len(self.labels)} labels"
            )
        spans = {name: (end - length, end) for name, length, end in zip(self.names, self.lengths, ends, strict=True)}
        if len(spans) != len(self.names):
            raise BadData(f"client {_repeated(self.names)!r} is there twice")
        object.__setattr__(self, "_starts", spans)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.names, self.lengths, strict=True))

    def __getitem__(self, client: str) -> Samples:
        start, end = self._starts[client]
        return self.features[start:end], self.labels[start:end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def concatenate_users(
    users: Mapping[str, Samples] | Sequence[tuple[str, Samples]],
) -> tuple[list[str], list[int], Any, Any]:
    """Names, lengths, features and labels of users, side by side: what `SlicedClients` takes."""
    pairs = list(users.items()) if isinstance(users, Mapping) else list(users)
    if not pairs:
        raise BadData("there are no users to join; give at least one")
    for name, (features, labels) in pairs:
        if len(features) != len(labels):
            raise BadData(f"user {name!r} has {len(features)} features but {len(labels)} labels")
    features = np.concatenate([np.asarray(samples[0]) for _, samples in pairs])
    labels = np.concatenate([np.asarray(samples[1]) for _, samples in pairs])
    return [name for name, _ in pairs], [len(samples[1]) for _, samples in pairs], features, labels


def check_user_count(users: int | None, most: int, task: str) -> int:
    """How many training clients a task gets: as asked for, or unless told all that it can have."""
    if users is not None and not 1 <= users <= most:
        raise BadSetting(f"users is {users}, but {task} can have 1 to {most}")
    return most if users is None else users


def _repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


_NOTE = "label_noise"
AnyTask = TypeVar("AnyTask", bound=Task)


def add_label_noise(task: AnyTask, share: float) -> AnyTask:
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
