"""Options for a user's own data: how samples are split over clients, and the settings of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray
from fedbalancer.data.partition import Partition, by_column, check_seed, dirichlet, iid, shards


class SplitOptions(TypedDict, total=False):
    """Who has what. `partition` (dirichlet, shards or iid) over so many `clients` is for data without users; `alpha`
    goes with dirichlet, `shards_per_client` with shards. `test_share` is held out for the test (0.1 unless told): of
    the users where there are users, of the samples otherwise. `seed` decides both."""

    partition: str
    clients: int
    alpha: float
    shards_per_client: int
    test_share: float
    seed: int


class TaskSettings(TypedDict, total=False):
    """Fields of `Task` that are not its data and its model."""

    name: str
    variant: str
    batch_size: int
    epochs: int
    learning_rate: float
    clients_per_round: int
    rounds: int
    eval_every: int
    clip_norm: float | None
    prox_mu: float
    sample_selection_deadline: int
    loss: str | Callable[[Any, Any], Any]
    metric: str | Callable[[Any, Any], tuple[float, float]]
    latency: str | Mapping[str, tuple[float, float]]
    model_bytes: int | None


class OwnOptions(SplitOptions, TaskSettings, total=False):
    """All keywords of `Task.from_arrays` and its sisters, besides those they name themselves."""


SPLIT = tuple(SplitOptions.__annotations__)
SETTINGS = tuple(TaskSettings.__annotations__)
NOT_OF_A_RUN = ("name", "variant", "loss", "metric", "model_bytes")
"""Fields of a task that no configuration of a run may change."""


def split_options(options: Mapping[str, Any], split: Iterable[str] = SPLIT) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the split and the settings; an unknown name is an error that suggests the nearest."""
    allowed = tuple(split)
    check_names(options, (*allowed, *SETTINGS), "option")
    settings = {key: value for key, value in options.items() if key in SETTINGS}
    check_settings(settings)
    return {key: value for key, value in options.items() if key in allowed}, settings


def check_names(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """An unknown name is an error that suggests the nearest; `kind` is what it calls the name."""
    names = tuple(known)
    for name in given:
        if name not in names:
            raise UnknownName(kind, name, names)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Every value in its range, before any data is read."""
    from fedbalancer.core.settings import resolve
    from fedbalancer.simulation.devices import resolve_latency

    own_row = not isinstance(settings.get("latency", ""), str)
    ruled = {key: value for key, value in settings.items() if key not in NOT_OF_A_RUN}
    if "latency" in ruled:
        resolve_latency(ruled["latency"])
    resolve({key: value for key, value in ruled.items() if not (own_row and key == "latency")})
    size = settings.get("model_bytes")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise BadSetting(f"model_bytes = {size!r} must be a whole number of at least 1")


PARTITIONS: Mapping[str, tuple[str, ...]] = {"dirichlet": ("alpha",), "shards": ("shards_per_client",), "iid": ()}
"""The partitions, and the options that belong to each alone."""
TEST_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of every client; rows of the test (none if there is test data of its own); users who are the test."""

    clients: Partition
    test: IndexArray | None
    held_out: tuple[str, ...] = ()


def split_rows(
    labels: NDArray[Any], users: NDArray[Any] | None, options: Mapping[str, Any], has_test: bool, where: str
) -> Split:
    """Users as they are, or a partition; without test data of its own some users, or some samples, are held out."""
    check_options(options, users is not None, has_test)
    seed = options.get("seed", 0)
    if users is not None:
        if len(users) != len(labels):
            raise BadData(f"{where} has {len(labels)} labels but {len(users)} users; every sample needs one of each")
        everybody = by_column(users)
        if has_test:
            return Split(everybody, None)
        held_out = draw_test_users(list(everybody), options, where)
        test = np.concatenate([everybody[user] for user in held_out])
        return Split({user: rows for user, rows in everybody.items() if user not in set(held_out)}, test, held_out)
    if has_test:
        return Split(_partition(labels, options), None)
    if len(labels) < 2:
        raise BadData(f"{where} has {len(labels)} samples: too few to hold some out; give test data with test=...")
    count = min(max(1, round(_get_test_share(options) * len(labels))), len(labels) - 1)
    order = stream(seed, "held-out samples").permutation(len(labels))
    rest = np.sort(order[count:])
    parts = _partition(labels[rest], options)
    return Split({client: rest[rows] for client, rows in parts.items()}, np.sort(order[:count]))


def draw_test_users(users: Sequence[str], options: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The users of the test: a share of them, at least one, drawn by the seed."""
    if len(users) < 2:
        raise BadData(f"{where} has one user, {users[0]!r}, so none can be held out; give test data, or more users")
    count = min(max(1, round(_get_test_share(options) * len(users))), len(users) - 1)
    drawn = stream(options.get("seed", 0), "held-out users").permutation(len(users))[:count]
    return tuple(users[number] for number in sorted(drawn))


def split_notes(
    options: Mapping[str, Any], held_out: Sequence[str], has_users: bool, has_test: bool
) -> dict[str, str | list[str]]:
    """What was done, in words, for the summary of the task."""
    said = ", ".join(f"{key} {options[key]}" for key in ("alpha", "shards_per_client", "seed") if key in options)
    shared_out = f"samples shared out by {options.get('partition')}{f' ({said})' if said else ''}"
    return {
        "clients": "a user each" if has_users else shared_out,
        "test": "given apart" if has_test else "held out",
        "held_out": list(held_out),
    }


def check_options(options: Mapping[str, Any], has_users: bool, has_test: bool) -> None:
    """Options that fit together; values are checked where they are used."""
    check_seed(options.get("seed", 0))
    _get_test_share(options)
    if has_test and "test_share" in options:
        raise BadSetting(f"test_share = {options['test_share']!r} is for data without a test; there is test data here")
    kind = options.get("partition")
    if kind is not None and kind not in PARTITIONS:
        raise UnknownName("partition", str(kind), PARTITIONS)
    if has_users and kind is not None:
        raise BadSetting(f"partition = {kind!r} is for data without users; leave it out, or the users")
    if not has_users and kind is None:
        raise BadSetting("say who has what: name the users, or give partition = dirichlet, shards or iid and clients")
    if kind is not None and "clients" not in options:
        raise BadSetting(f"partition = {kind!r} needs clients: how many to share the samples out to")
    fitting = ("clients", *PARTITIONS[kind]) if kind is not None else ()
    for key in ("clients", "alpha", "shards_per_client"):
        if key in options and key not in fitting:
            homes = [name for name, keys in PARTITIONS.items() if key in ("clients", *keys)]
            raise BadSetting(f"{key} = {options[key]!r} goes with partition = {' or '.join(homes)} only")


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
        raise BadSetting(f"test_share = {share!r} must be a number over 0 and below 1")
    return float(share)
