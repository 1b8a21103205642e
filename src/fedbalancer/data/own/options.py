"""Options for a user's own data: how samples are split over clients, and the settings of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.cost import ESTIMATED
from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.metrics import Metrics, read_metrics
from fedbalancer.core.randomness import stream
from fedbalancer.core.schedules import RateFunction, Schedule
from fedbalancer.core.types import IndexArray
from fedbalancer.data.partition import Partition, by_column, check_seed, dirichlet, iid, shards


class SplitOptions(TypedDict, total=False):
    """Options of the distribution of samples over clients.

    Args:
        partition: "dirichlet", "shards" or "iid", for data without users.
        clients: Number of clients of the partition.
        alpha: Concentration of the Dirichlet distribution. Default: 0.5.
        shards_per_client: Number of shards per client. Default: 2.
        test_share: Share of the users, or of the samples without users, that is held out for the test. Default: 0.1.
        client_test_share: Share of every client's samples that is held out as the client's own test data
            (`client_tests`). Default: none.
        seed: Seed of the partition and of the held-out shares. Default: 0.
    """

    partition: str
    clients: int
    alpha: float
    shards_per_client: int
    test_share: float
    client_test_share: float
    seed: int


class TaskSettings(TypedDict, total=False):
    """Fields of `Task` besides its data and its model. See `BaseTask`."""

    name: str
    variant: str
    batch_size: int
    epochs: int
    learning_rate: float | RateFunction
    schedule: Schedule | str | Mapping[str, Any] | None
    optimizer: str | Mapping[str, Any] | Callable[..., Any]
    accumulate: int
    dtype: str
    drop_last: bool
    batch_norm: str
    optimizer_state: str
    clients_per_round: int
    rounds: int
    eval_every: int
    clip_norm: float | None
    prox_mu: float
    sample_selection_deadline: int
    loss: str | Callable[[Any, Any], Any]
    metric: Metrics | None
    latency: str | Mapping[str, tuple[float, float]]
    latency_batch_size: int | None
    model_bytes: int | None
    forward: Callable[[Any, Any], Any]


class OwnOptions(SplitOptions, TaskSettings, total=False):
    """Keyword options of `Task.from_arrays` and the other constructors from files and data sets."""


SPLIT = tuple(SplitOptions.__annotations__)
SETTINGS = tuple(TaskSettings.__annotations__)
NOT_OF_A_RUN = ("name", "variant", "loss", "metric", "model_bytes", "latency_batch_size", "forward")
"""Fields of a task that the settings of a run cannot change."""


def split_options(options: Mapping[str, Any], split: Iterable[str] = SPLIT) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the options of the split from the settings of the task.

    Args:
        options: All options.
        split: Names of the allowed options of the split.

    Raises:
        UnknownName: If an option does not exist.
        BadSetting: If a setting is invalid.
    """
    allowed = tuple(split)
    check_names(options, (*allowed, *SETTINGS), "option")
    settings = {key: value for key, value in options.items() if key in SETTINGS}
    check_settings(settings)
    return {key: value for key, value in options.items() if key in allowed}, settings


def check_names(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Check that all names are known.

    Args:
        given: Names to check.
        known: Known names.
        kind: What the names are, for the error.

    Raises:
        UnknownName: If a name is unknown; the error suggests the nearest one.
    """
    names = tuple(known)
    for name in given:
        if name not in names:
            raise UnknownName(kind, name, names)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of a task before any data are read.

    Raises:
        BadSetting: If a value is invalid.
    """
    from fedbalancer.core.settings import resolve
    from fedbalancer.simulation.devices import resolve_latency

    read_metrics(settings.get("metric"))
    is_custom = not isinstance(settings.get("latency", ""), str)
    of_run = {key: value for key, value in settings.items() if key not in NOT_OF_A_RUN}
    if of_run.get("latency", ESTIMATED) != ESTIMATED:
        resolve_latency(of_run["latency"])
    resolve({key: value for key, value in of_run.items() if not (is_custom and key == "latency")})
    size = settings.get("model_bytes")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise BadSetting(f"model_bytes = {size!r} must be a whole number of at least 1")


PARTITIONS: Mapping[str, tuple[str, ...]] = {"dirichlet": ("alpha",), "shards": ("shards_per_client",), "iid": ()}
"""The partitions and their options."""
TEST_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Split:
    """A split of the rows of a table.

    Args:
        clients: Rows of every client.
        test: Rows of the test data. None if they are given separately.
        held_out: Users of the test data.
    """

    clients: Partition
    test: IndexArray | None
    held_out: tuple[str, ...] = ()


def split_rows(
    labels: NDArray[Any], users: NDArray[Any] | None, options: Mapping[str, Any], has_test: bool, where: str
) -> Split:
    """Split the rows of a table over clients and test data.

    Args:
        labels: Label of every row.
        users: User of every row. None: the rows are partitioned.
        options: Options of the split.
        has_test: Whether test data are given separately.
        where: Name of the table, for errors.
    """
    check_options(options, users is not None, has_test)
    seed = options.get("seed", 0)
    if users is not None:
        if len(users) != len(labels):
            raise BadData(f"{where} has {len(labels)} labels but {len(users)} users; every sample needs both")
        by_user = by_column(users)
        if has_test:
            return Split(by_user, None)
        held_out = draw_test_users(list(by_user), options, where)
        test = np.concatenate([by_user[user] for user in held_out])
        return Split({user: rows for user, rows in by_user.items() if user not in set(held_out)}, test, held_out)
    if has_test:
        return Split(_partition(labels, options), None)
    if len(labels) < 2:
        raise BadData(f"{where} has {len(labels)} samples: too few to hold some out; provide test data with test=...")
    count = min(max(1, round(_get_test_share(options) * len(labels))), len(labels) - 1)
    order = stream(seed, "held-out samples").permutation(len(labels))
    rest = np.sort(order[count:])
    parts = _partition(labels[rest], options)
    return Split({client: rest[rows] for client, rows in parts.items()}, np.sort(order[:count]))


def draw_test_users(users: Sequence[str], options: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Draw the users of the test data: a share of all users, at least one.

    Args:
        users: All users.
        options: Options of the split.
        where: Name of the data, for errors.
    """
    if len(users) < 2:
        raise BadData(f"{where} has one user, {users[0]!r}, so none can be held out; provide test data or more users")
    count = min(max(1, round(_get_test_share(options) * len(users))), len(users) - 1)
    drawn = stream(options.get("seed", 0), "held-out users").permutation(len(users))[:count]
    return tuple(users[number] for number in sorted(drawn))


def split_notes(
    options: Mapping[str, Any], held_out: Sequence[str], has_users: bool, has_test: bool
) -> dict[str, str | list[str]]:
    """Describe the split, for the summary of the task."""
    details = ", ".join(f"{key} {options[key]}" for key in ("alpha", "shards_per_client", "seed") if key in options)
    partitioned = f"samples partitioned by {options.get('partition')}{f' ({details})' if details else ''}"
    return {
        "clients": "one user each" if has_users else partitioned,
        "test": "given separately" if has_test else "held out",
        "held_out": list(held_out),
    }


def check_options(options: Mapping[str, Any], has_users: bool, has_test: bool) -> None:
    """Check that the options of a split fit together. Their values are checked where they are used.

    Args:
        options: Options of the split.
        has_users: Whether the data have users.
        has_test: Whether test data are given separately.

    Raises:
        BadSetting: If options contradict each other or are missing.
    """
    check_seed(options.get("seed", 0))
    _get_test_share(options)
    if has_test and "test_share" in options:
        raise BadSetting(f"test_share = {options['test_share']!r} cannot be combined with test data")
    kind = options.get("partition")
    if kind is not None and kind not in PARTITIONS:
        raise UnknownName("partition", str(kind), PARTITIONS)
    if has_users and kind is not None:
        raise BadSetting(f"partition = {kind!r} is for data without users; omit the partition or the users")
    if not has_users and kind is None:
        raise BadSetting("specify the users, or set partition (dirichlet, shards or iid) and clients")
    if kind is not None and "clients" not in options:
        raise BadSetting(f"partition = {kind!r} needs clients, the number of clients")
    fitting = ("clients", *PARTITIONS[kind]) if kind is not None else ()
    for key in ("clients", "alpha", "shards_per_client"):
        if key in options and key not in fitting:
            owners = [name for name, keys in PARTITIONS.items() if key in ("clients", *keys)]
            raise BadSetting(f"{key} = {options[key]!r} requires partition = {' or '.join(owners)}")


def _partition(labels: NDArray[Any], options: Mapping[str, Any]) -> Partition:
    kind, clients, seed = options["partition"], options["clients"], options.get("seed", 0)
    if kind == "dirichlet":
        return dirichlet(labels, clients, options.get("alpha", 0.5), seed)
    if kind == "shards":
        return shards(labels, clients, options.get("shards_per_client", 2), seed)
    return iid(len(labels), clients, seed)


def _get_test_share(options: Mapping[str, Any]) -> float:
    share = options.get("test_share", TEST_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise BadSetting(f"test_share = {share!r} must be greater than 0 and less than 1")
    return float(share)
