"""Partitions of samples over clients, for data without users, and draws of the clients' numbers of samples.

A partition maps every client to the sorted indices of its samples. Every sample belongs to exactly one client, every
client has at least one sample, and the same arguments give the same partition.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray

Partition = dict[str, IndexArray]

ALPHA_RANGE = (0.001, 1e6)
"""Smaller values underflow and would give about one client per label; larger values are practically IID."""


def dirichlet(labels: NDArray[Any] | Sequence[Any], clients: int, alpha: float = 0.5, seed: int = 0) -> Partition:
    """Distribute every label over the clients in shares drawn from a symmetric Dirichlet distribution.

    A client without samples receives one from the largest client.

    Args:
        labels: Label of every sample.
        clients: Number of clients.
        alpha: Concentration. Small values give clients with few labels and of different sizes.
        seed: Seed of the draw.

    Raises:
        BadSetting: If an argument is out of range.

    >>> {client: rows.tolist() for client, rows in dirichlet([0, 0, 0, 1, 1, 1], clients=2, alpha=0.1).items()}
    {'client-0': [3, 5], 'client-1': [0, 1, 2, 4]}
    """
    classes = _number_classes(labels)
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
    return _by_owner(_fill_empty_clients(owner, clients, draws), clients)


def shards(labels: NDArray[Any] | Sequence[Any], clients: int, shards_per_client: int = 2, seed: int = 0) -> Partition:
    """Sort the samples by label, cut them into equal shards, and give every client random shards.

    Args:
        labels: Label of every sample.
        clients: Number of clients.
        shards_per_client: Number of shards per client, which is about its number of labels.
        seed: Seed of the draw.

    Raises:
        BadSetting: If an argument is out of range.

    >>> {client: rows.tolist() for client, rows in shards([0, 0, 1, 1, 2, 2], clients=3, shards_per_client=1).items()}
    {'client-0': [0, 1], 'client-1': [2, 3], 'client-2': [4, 5]}
    """
    classes = _number_classes(labels)
    samples = len(classes)
    _check_clients(clients, samples)
    _check_whole("shards_per_client", shards_per_client, samples // clients, f"{clients} clients of {samples} samples")
    draws = stream(check_seed(seed), "shard partition")
    shuffled = draws.permutation(samples)  # random order within a label
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    pieces = clients * shards_per_client
    dealt = draws.permutation(pieces) // shards_per_client
    owner = np.empty(samples, dtype=np.int64)
    owner[order] = dealt[np.arange(samples) * pieces // samples]
    return _by_owner(owner, clients)


def iid(samples: int, clients: int, seed: int = 0) -> Partition:
    """Shuffle the samples and distribute them in equal numbers.

    Args:
        samples: Number of samples.
        clients: Number of clients.
        seed: Seed of the draw.

    Raises:
        BadSetting: If an argument is out of range.

    >>> {client: rows.tolist() for client, rows in iid(5, clients=2).items()}
    {'client-0': [0, 3, 4], 'client-1': [1, 2]}
    """
    _check_whole("samples", samples, 2**62)
    _check_clients(clients, samples)
    owner = np.empty(samples, dtype=np.int64)
    owner[stream(check_seed(seed), "iid partition").permutation(samples)] = np.arange(samples) * clients // samples
    return _by_owner(owner, clients)


def by_column(values: NDArray[Any] | Sequence[Any]) -> Partition:
    """Make every distinct value a client, in sorted order. The client id is the value as text.

    Args:
        values: User of every sample.

    Raises:
        BadData: If a value is missing.

    >>> {client: rows.tolist() for client, rows in by_column([10, 2, 10]).items()}
    {'2': [1], '10': [0, 2]}
    """
    users, owner = np.unique(_convert_ids(values), return_inverse=True)
    return _by_owner(owner.reshape(-1), len(users), [str(user) for user in users])


def _by_owner(owner: IndexArray, clients: int, names: Sequence[str] | None = None) -> Partition:
    """Return the samples of every owner."""
    digits = len(str(clients - 1))
    names = names if names is not None else [f"client-{number:0{digits}d}" for number in range(clients)]
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return dict(zip(names, np.split(order, ends[:-1]), strict=True))


def _fill_empty_clients(owner: IndexArray, clients: int, draws: np.random.Generator) -> IndexArray:
    sizes = np.bincount(owner, minlength=clients)
    largest = [(-int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(largest)
    for client in np.flatnonzero(sizes == 0):
        size, giver = largest[0]
        owner[draws.choice(np.flatnonzero(owner == giver))] = client
        heapq.heapreplace(largest, (size + 1, giver))
    return owner


def _number_classes(labels: NDArray[Any] | Sequence[Any]) -> IndexArray:
    """Convert labels of any type to 0, 1, 2, ..."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0:
        raise BadData(f"there must be one label per sample, at least one, not labels of shape {array.shape}")
    return np.unique(array, return_inverse=True)[1].reshape(-1)


def _convert_ids(values: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    """Convert user ids to whole numbers or text."""
    column = np.asarray(values)
    if column.ndim != 1 or len(column) == 0:
        raise BadData(f"there must be one user id per sample, at least one, not ids of shape {column.shape}")
    missing = [row for row, value in enumerate(column.tolist()) if _is_missing(value)]
    if missing:
        raise BadData(f"row {missing[0]} has no user; every sample needs the id of its user")
    if column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.floor(column)).all():
        return column.astype(np.int64)
    if column.dtype.kind in "iub":
        return column
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in column.tolist()]
    return np.array(texts, dtype=object)  # NumPy's text type drops a NUL at the end, which could merge two ids


def _is_missing(value: Any) -> bool:
    return value is None or value in ("", b"") or (isinstance(value, float) and math.isnan(value))


def _check_clients(clients: int, samples: int) -> None:
    _check_whole("clients", clients, samples, f"{samples} samples")


def _check_whole(name: str, value: int, high: int, of: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= high:
        among = f" for {of}" if of else ""
        raise BadSetting(f"{name} = {value!r} must be a whole number from 1 to {high}{among}")


def check_seed(seed: int) -> int:
    """Return the seed as an int.

    Raises:
        BadSetting: If it is not a whole number from 0 to 2**63 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise BadSetting(f"seed = {seed!r} must be a whole number from 0 to 2**63 - 1")
    return int(seed)


_STEPS = 60
"""Halvings of an interval; more do not change a float."""
_LARGEST_SIGMA = 10.0


def lognormal_sizes(
    clients: int, samples: int, variation: float, *, least: int = 1, most: int | None = None, seed: int = 0
) -> IndexArray:
    """Draw numbers of samples from a lognormal distribution, with an exact total and a given spread.

    The draws are clipped to the range and scaled to the total. Sigma is chosen so that the standard deviation is
    `variation` times the mean, or as close to it as the range allows.

    Args:
        clients: Number of clients.
        samples: Number of samples of all clients.
        variation: Coefficient of variation: standard deviation over mean. 0 gives equal sizes.
        least: Smallest number of samples of a client.
        most: Largest number of samples of a client. None: no limit.
        seed: Seed of the draw.

    Raises:
        BadSetting: If an argument is out of range, or the range does not allow the total.

    >>> lognormal_sizes(5, 100, 1.0, least=2)
    array([ 5,  9, 17, 59, 10])
    """
    most = samples if most is None else most
    if clients < 1 or not 1 <= least <= most or not least * clients <= samples <= most * clients:
        raise BadSetting(f"{clients} clients cannot have {samples} samples with {least} to {most} each")
    if not (math.isfinite(variation) and variation >= 0):
        raise BadSetting(f"variation = {variation!r} must be a number of at least 0")
    normal = stream(check_seed(seed), "sizes of clients").standard_normal(clients)

    def drawn(sigma: float) -> FloatArray:
        shape = sigma * normal
        scale = _find(lambda log: float(np.clip(np.exp(log + shape), least, most).sum()), samples, -100.0, 100.0)
        return np.asarray(np.clip(np.exp(scale + shape), least, most))

    def spread(sigma: float) -> float:
        sizes = drawn(sigma)
        return float(sizes.std() / sizes.mean())

    return _round_to(drawn(_find(spread, variation, 0.0, _LARGEST_SIGMA)), samples, least, most)


def _find(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return where a rising function has the value; the end of the interval if it does not."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low


def _round_to(sizes: FloatArray, total: int, least: int, most: int) -> IndexArray:
    """Round to whole numbers with the given sum: those with the largest remainders are rounded up."""
    whole = np.clip(np.floor(sizes + 1e-9), least, most).astype(np.int64)
    order = np.argsort(whole - sizes, kind="stable")
    while (missing := total - int(whole.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = [client for client in order[::step] if least <= whole[client] + step <= most]
        whole[free[: abs(missing)]] += step
    return whole
