"""Optimizers as text: `adamw(weight_decay=0.01)`. So settings, manifests and messages to clients can hold them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedbalancer.core.calls import read_call, write_call
from fedbalancer.core.errors import BadSetting, UnknownName

SGD = "sgd"
"""Plain SGD, for which the fast backend has kernels."""
CUSTOM = "custom"
"""The text of an optimizer that only the task, or the client app, can make."""
OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "muon", "nadam", "radam", "rmsprop", "rprop",
    SGD,
)  # fmt: skip
"""Optimizers of `torch.optim` by the names that settings use."""
REFUSED = {
    "lbfgs": "it evaluates a batch several times per step, so its duration is unknown",
    "sparseadam": "it needs sparse gradients",
}
"""Optimizers of `torch.optim` that do not work here, and why."""


def optimizer_text(value: Any) -> str:
    """Return the canonical text of an optimizer.

    Args:
        value: A text such as `adamw(weight_decay=0.01)`; a mapping of `name` and options; a class of `torch.optim` or
            a partial of one; or any function (parameters, lr=...) that returns an optimizer, whose text is `custom`.

    Raises:
        UnknownName: If `torch.optim` has no such optimizer.
        BadSetting: If the optimizer does not work here.

    Example:
        >>> optimizer_text("AdamW(weight_decay=0.01)"), optimizer_text({"name": "sgd", "momentum": 0.9})
        ('adamw(weight_decay=0.01)', 'sgd(momentum=0.9)')
        >>> optimizer_text(lambda parameters, lr: None)
        'custom'
    """
    place, example = f"optimizer = {value!r}", "adamw(weight_decay=0.01)"
    if isinstance(value, str):
        return _checked(place, *read_call(place, value, example))
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return _checked(place, value["name"], {str(key): each for key, each in value.items() if key != "name"})
    if not callable(value):
        what = repr(value) if isinstance(value, bool | int | float) else f"an object of {type(value).__name__}"
        raise BadSetting(
            f"optimizer is {what}; give a text such as {example}, a table with a name, or a class of torch.optim"
        )
    make, options = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    _check_options(place, options)
    if not inspect.isclass(make) or not make.__module__.startswith("torch.optim"):
        return CUSTOM
    if isinstance(value, partial) and value.args:
        raise BadSetting(f"{place} must have keyword arguments only")
    name = make.__name__.lower()
    is_named = name in (*OPTIMIZERS, *REFUSED) and all(map(_is_plain, options.values()))
    return _checked(place, name, options) if is_named else CUSTOM


def read_optimizer(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a canonical text.

    Example:
        >>> read_optimizer("adamw(weight_decay=0.01)")
        ('adamw', {'weight_decay': 0.01})
    """
    return read_call(f"optimizer = {text!r}", text)


def _checked(place: str, name: str, options: Mapping[str, Any]) -> str:
    lower = name.lower()
    if lower in REFUSED:
        raise BadSetting(f"{place}: {name} does not work here, because {REFUSED[lower]}")
    if lower not in (*OPTIMIZERS, CUSTOM):
        raise UnknownName("optimizer", name, OPTIMIZERS)
    if lower == CUSTOM and options:
        raise BadSetting(f"{place}: the task's own optimizer has no options here")
    _check_options(place, options)
    for key, value in options.items():
        if not _is_plain(value):
            raise BadSetting(
                f"{place}: {key} = {value!r} must be a number, true or false, a text, or a list of numbers"
            )
    return write_call(lower, {key: tuple(each) if isinstance(each, list) else each for key, each in options.items()})


def _check_options(place: str, options: Mapping[str, Any]) -> None:
    if "lr" in options:
        raise BadSetting(f"{place}: lr is the learning_rate of the task; set learning_rate = {options['lr']!r} instead")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return value is None or isinstance(value, bool | int | float | str)
