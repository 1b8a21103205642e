"""What may be said about data of one's own: who has what, and every setting of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from fedbalancer.core.errors import BadSetting, UnknownName


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


def divided(options: Mapping[str, Any], split: Iterable[str] = SPLIT) -> tuple[dict[str, Any], dict[str, Any]]:
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
