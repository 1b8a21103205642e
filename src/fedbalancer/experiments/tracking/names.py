"""Sinks by name: `tensorboard[:DIR]`, `mlflow[:URI]`, `wandb[:PROJECT]`, or a class as `package.module:Class`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, MissingData, UnknownName
from fedbalancer.experiments.tracking.sink import Say

KNOWN = {
    "tensorboard": ("fedbalancer.experiments.tracking.tensorboard:TensorBoard", "tensorboardX"),
    "mlflow": ("fedbalancer.experiments.tracking.mlflow:MLflow", "mlflow"),
    "wandb": ("fedbalancer.experiments.tracking.wandb:WandB", "wandb"),
}
"""The class of each sink that we have, and what it needs."""


def check_sinks(sinks: Sequence[Any]) -> None:
    """Raise a clear error for a sink that cannot be made, before a run starts."""
    for sink in sinks:
        _maker(sink)


def open_sinks(sinks: Sequence[Any], folder: Path | None, say: Say) -> list[tuple[str, Any]]:
    """The sinks of one run, each with its name: names make one of their own, objects are taken as they are. `folder` is
    the run's; `say` is told of one that cannot be made."""
    opened = []
    for sink in sinks:
        try:
            opened.append((_name(sink), _maker(sink)(folder)))
        except Exception as error:
            say(_name(sink), f"{type(error).__name__}: {error}")
    return opened


def _maker(sink: Any) -> Callable[[Path | None], Any]:
    if not isinstance(sink, str):
        return lambda folder: sink
    name, _, argument = sink.partition(":")
    if name in KNOWN:
        place, package = KNOWN[name]
        if find_spec(package) is None:
            raise MissingData(f"--track {name} needs the package {package}: pip install 'fedbalancer[track]'")
        return lambda folder: _found(place)(argument or None, folder)
    if not argument:
        raise UnknownName("sink", sink, [*KNOWN, "package.module:Class"])
    sink_class = _found(sink)
    return lambda folder: sink_class()


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadSetting(f"--track {place} cannot be imported: {error}; give package.module:Class") from error
    if not callable(found):
        raise BadSetting(f"--track {place} is {found!r}; give a class that is made without arguments")
    return found


def _name(sink: Any) -> str:
    return sink if isinstance(sink, str) else type(sink).__name__
