"""Mappings of clients to samples: slices of one array, held-out shares, and clients with wrong labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.samples import IGNORED, take
from fedbalancer.core.task import Samples
from fedbalancer.data.partition import check_seed
from fedbalancer.data.task import Task


@dataclass(frozen=True, eq=False)
class SlicedClients(Mapping[str, Samples]):
    """Clients whose samples are consecutive rows of shared arrays. Nothing is copied.

    The samples are not checked when a task is built from them; only the number of rows is.

    Args:
        names: Client ids.
        lengths: Number of samples of each client.
        features: Features of all clients, in the order of the names.
        labels: Labels of all clients.

    Raises:
        BadData: If the lengths do not fit, or a name occurs twice.

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
            raise BadData(f"there are {len(self.names)} client names but {len(self.lengths)} lengths")
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        rows = ends[-1] if ends else 0
        if not rows == len(self.features) == len(self.labels):
            raise BadData(
                f"clients have {rows} samples in total, but there are {len(self.features)} features "
                f"and {len(self.labels)} labels"
            )
        spans = {name: (end - length, end) for name, length, end in zip(self.names, self.lengths, ends, strict=True)}
        if len(spans) != len(self.names):
            raise BadData(f"client {_find_repeated(self.names)!r} occurs twice")
        object.__setattr__(self, "_starts", spans)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples by client."""
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
    """Concatenate the samples of users for `SlicedClients`.

    Args:
        users: Samples by user.

    Returns:
        Names, lengths, features and labels.

    Raises:
        BadData: If there are no users, or a user has more features than labels or the reverse.
    """
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
    """Return the number of training clients of a task.

    Args:
        users: Requested number. None: all.
        most: Number of available clients.
        task: Name of the task, for the error.

    Raises:
        BadSetting: If fewer than 1 or more than `most` clients are requested.
    """
    if users is not None and not 1 <= users <= most:
        raise BadSetting(f"users is {users}, but {task} can have 1 to {most}")
    return most if users is None else users


def _find_repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


AnyTask = TypeVar("AnyTask", bound=Task)


def hold_out_tests(task: AnyTask, share: float, seed: int = 0) -> AnyTask:
    """Return the task with a share of every client's samples held out as the client's own test data.

    Args:
        task: The task.
        share: Share of the samples, at least one sample per client. A client with a single sample keeps it.
        seed: Draws the samples.

    Raises:
        BadSetting: If the share is not between 0 and 1.
        BadData: If the task has such tests already.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise BadSetting(f"client_test_share = {share!r} must be greater than 0 and less than 1")
    check_seed(seed)
    if task.client_tests:
        raise BadData(f"task {task.name!r} has tests of clients already")
    parts = (_Split(task, share, seed, held_out) for held_out in (False, True))
    return replace(task, clients=next(parts), client_tests=next(parts))


@dataclass(frozen=True, eq=False)
class _Split(Mapping[str, Samples]):
    """The samples of clients that are kept for training, or those that are held out; made on demand."""

    whole: Task
    share: float
    seed: int
    held_out: bool
    sizes: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        sizes = {client: self._count(size) for client, size in self.whole.sizes.items()}
        object.__setattr__(self, "sizes", {client: size for client, size in sizes.items() if size})

    def _count(self, size: int) -> int:
        held_out = min(max(1, round(self.share * size)), size - 1)
        return held_out if self.held_out else size - held_out

    def __getitem__(self, client: str) -> Samples:
        count = self.sizes[client]
        features, labels = self.whole.samples(client)
        order = stream(self.seed, "held-out samples of a client", 0, client).permutation(len(labels))
        rows = np.sort(order[:count] if self.held_out else order[len(labels) - count :])
        return take(features, rows), take(labels, rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


_NOTE = "label_noise"


def add_label_noise(task: AnyTask, share: float) -> AnyTask:
    """Return the task with wrong labels on its clients. The test data are not changed.

    Args:
        task: The task.
        share: Expected share of labels that are replaced by another class. The choice is the same in every run.

    Raises:
        BadSetting: If the labels are not one class per sample.
    """
    if not share or task.notes.get(_NOTE) == share:
        return task
    labels = np.asarray(task.test[1])
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadSetting(f"setting label_noise = {share}: task {task.name!r} does not have one class per sample")
    classes = task.classes or int(labels.max()) + 1
    return replace(task, clients=_Noisy(task, share, classes), notes={**task.notes, _NOTE: share})


@dataclass(frozen=True, eq=False)
class _Noisy(Mapping[str, Samples]):
    """Clients with wrong labels, made on demand."""

    clean: Task
    share: float
    classes: int

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of samples by client."""
        return self.clean.sizes

    def __getitem__(self, client: str) -> Samples:
        features, labels = self.clean.samples(client)
        rng = stream(0, "label noise", 0, client)
        other = (np.asarray(labels) + rng.integers(1, self.classes, len(labels))) % self.classes
        wrong = (rng.random(len(labels)) < self.share) & (np.asarray(labels) != IGNORED)
        return features, np.where(wrong, other, labels).astype(np.asarray(labels).dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clean.clients)

    def __len__(self) -> int:
        return len(self.clean.clients)
