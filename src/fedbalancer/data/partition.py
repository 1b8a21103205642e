"""Who has what, for data without users: seeded partitions of samples over clients.

A partition is an ordered mapping of a client to the sorted indices of its samples. Every sample has exactly one client,
every client has at least one sample, and the same arguments give the same partition.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray

Partition = dict[str, IndexArray]

ALPHA_RANGE = (0.001, 1e6)
"""Below, a draw is as good as one client a label already, and its arithmetic ends; above, it is as good as IID."""


def dirichlet(labels: NDArray[Any] | Sequence[Any], clients: int, alpha: float = 0.5, seed: int = 0) -> Partition:
    """Every label is dealt to the clients in shares drawn from a symmetric Dirichlet distribution.

    A small `alpha` gives clients of few labels and of unlike sizes. A client that drew nothing takes one sample of the
    client that has most at that moment.

    >>> {client: rows.tolist() for client, rows in dirichlet([0, 0, 0, 1, 1, 1], clients=2, alpha=0.1).items()}
    {'client-0': [3, 5], 'client-1': [0, 1, 2, 4]}
    """
    classes = _classes(labels)
    _check_clients(clients, len(classes))
    low, high = ALPHA_RANGE
    if not (isinstance(alpha, int | float) and math.isfinite(alpha) and low <= alpha <= high):
        raise BadSetting(f"alpha = {alpha!r} must be a number from {low:g} to {high:g}")
    draws = stream(check_seed(seed), "dirichlet partition")
    owner = np.empty(len(classes), dtype=np.int64)
    for of_label in _by_owner(classes, int(classes.max()) + 1).values():
        rows = draws.permutation(of_label)
        ends = np.cumsum(draws.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)) + 0.5)
    return _by_owner(_nobody_empty(owner, clients, draws), clients)


def shards(labels: NDArray[Any] | Sequence[Any], clients: int, shards_per_client: int = 2, seed: int = 0) -> Partition:
    """Samples in order of their label are cut into equal pieces, of which every client draws a few, so that a client
    has about as many labels as pieces.

    >>> {client: rows.tolist() for client, rows in shards([0, 0, 1, 1, 2, 2], clients=3, shards_per_client=1).items()}
    {'client-0': [0, 1], 'client-1': [2, 3], 'client-2': [4, 5]}
    """
    classes = _classes(labels)
    samples = len(classes)
    _check_clients(clients, samples)
    _check_whole("shards_per_client", shards_per_client, samples // clients, f"{clients} clients of {samples} samples")
    draws = stream(check_seed(seed), "shard partition")
    shuffled = draws.permutation(samples)  # which samples of a label lie together is drawn as well
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    pieces = clients * shards_per_client
    dealt = draws.permutation(pieces) // shards_per_client
    owner = np.empty(samples, dtype=np.int64)
    owner[order] = dealt[np.arange(samples) * pieces // samples]
    return _by_owner(owner, clients)


def iid(samples: int, clients: int, seed: int = 0) -> Partition:
    """Samples are shuffled and dealt in equal numbers.

    >>> {client: rows.tolist() for client, rows in iid(5, clients=2).items()}
    {'client-0': [0, 3, 4], 'client-1': [1, 2]}
    """
    _check_whole("samples", samples, 2**62)
    _check_clients(clients, samples)
    owner = np.empty(samples, dtype=np.int64)
    owner[stream(check_seed(seed), "iid partition").permutation(samples)] = np.arange(samples) * clients // samples
    return _by_owner(owner, clients)


def by_column(values: NDArray[Any] | Sequence[Any]) -> Partition:
    """Every different value is a client, in the order of the values; its name is the value as text.

    >>> {client: rows.tolist() for client, rows in by_column([10, 2, 10]).items()}
    {'2': [1], '10': [0, 2]}
    """
    found, owner = np.unique(_ids(values), return_inverse=True)
    return _by_owner(owner.reshape(-1), len(found), [str(value) for value in found])


def _by_owner(owner: IndexArray, clients: int, names: Sequence[str] | None = None) -> Partition:
    """From the owner of every sample to the samples of every owner."""
    digits = len(str(clients - 1))
    names = names if names is not None else [f"client-{number:0{digits}d}" for number in range(clients)]
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return dict(zip(names, np.split(order, ends[:-1]), strict=True))


def _nobody_empty(owner: IndexArray, clients: int, draws: np.random.Generator) -> IndexArray:
    sizes = np.bincount(owner, minlength=clients)
    largest = [(-int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(largest)
    for client in np.flatnonzero(sizes == 0):
        size, giver = largest[0]
        owner[draws.choice(np.flatnonzero(owner == giver))] = client
        heapq.heapreplace(largest, (size + 1, giver))
    return owner


def _classes(labels: NDArray[Any] | Sequence[Any]) -> IndexArray:
    """Labels of any kind as 0, 1, 2, ..."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0:
        raise BadData(f"there must be one label per sample, at least one, not labels of shape {array.shape}")
    return np.unique(array, return_inverse=True)[1].reshape(-1)


def _ids(values: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    """Ids as whole numbers or text; a missing one is an error that names its row."""
    column = np.asarray(values)
    if column.ndim != 1 or len(column) == 0:
        raise BadData(f"there must be one user id per sample, at least one, not ids of shape {column.shape}")
    absent = [row for row, value in enumerate(column.tolist()) if _is_missing(value)]
    if absent:
        raise BadData(f"row {absent[0]} has no user; every sample needs the id of its user")
    if column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.floor(column)).all():
        return column.astype(np.int64)
    if column.dtype.kind in "iub":
        return column
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in column.tolist()]
    return np.array(texts, dtype=object)  # NumPy's own text would drop a NUL at the end and join two ids


def _is_missing(value: Any) -> bool:
    return value is None or value in ("", b"") or (isinstance(value, float) and math.isnan(value))


def _check_clients(clients: int, samples: int) -> None:
    _check_whole("clients", clients, samples, f"{samples} samples")


def _check_whole(name: str, value: int, high: int, of: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= high:
        among = f" for {of}" if of else ""
        raise BadSetting(f"{name} = {value!r} must be a whole number from 1 to {high}{among}")


def check_seed(seed: int) -> int:
    """The seed, if it is one."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise BadSetting(f"seed = {seed!r} must be a whole number from 0 to 2**63 - 1")
    return int(seed)
