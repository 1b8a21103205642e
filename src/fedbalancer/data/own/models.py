"""Models by name: built-in models, whose shape is derived from the data, and functions by import path."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.data.own.options import check_names

if TYPE_CHECKING:
    import torch
    from torch import nn


MODELS: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"hidden": (64,)},
    "cnn1d": {"filters": (32, 64), "width": 5, "channels": "auto"},
    "cnn2d": {"filters": (32, 64), "width": 3, "channels": "auto"},
    "lstm": {"hidden": 64, "layers": 1, "embedding": 16, "vocabulary": None, "channels": "auto"},
}
"""The built-in models and their options: whole numbers, and `channels` (first, last, or auto: the shorter side)."""

Model = str | Mapping[str, Any] | Callable[[], Any]
"""Name of a built-in model, import path "package.module:function", mapping of `name` and options, or a factory."""

CHANNELS = ("auto", "first", "last")
LARGEST = 100_000_000


@dataclass(frozen=True)
class BuiltIn:
    """A factory of a built-in model. It contains only data, so it can be sent to other processes.

    Args:
        name: Name of the model.
        reading: How the model interprets a sample.
        classes: Number of outputs.
        options: Options of the model.
        pixels: Whether features are divided by 255.
    """

    name: str
    reading: Reading
    classes: int
    options: tuple[tuple[str, Any], ...]
    pixels: bool = False

    def __call__(self) -> Any:
        make: Callable[..., Any] = globals()[self.name]
        return make(self.reading, self.classes, 1 / 255 if self.pixels else 1.0, **dict(self.options))

    def __str__(self) -> str:
        options = ", ".join(f"{key} {_format_value(value)}" for key, value in self.options)
        return f"{self.name} ({options}) of {self.reading}{' / 255' if self.pixels else ''}"


def make_factory(model: Model, features: Sequence[NDArray[Any]], classes: int | None) -> Callable[[], Any]:
    """Return the factory of a model that fits the data.

    Args:
        model: Name, mapping or factory.
        features: Features of all clients and of the test data.
        classes: Number of classes. None if the labels are not classes.

    Raises:
        BadData: If the features do not fit the model.
        BadSetting: If an option is invalid.
    """
    if not isinstance(model, str | Mapping):
        if not callable(model):
            raise BadData(f"model is {model!r}; it must be a name, a mapping with a name, or a function")
        return model
    options = {"name": model} if isinstance(model, str) else dict(model)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise BadSetting(f"model needs a name: one of {', '.join(MODELS)}, or package.module:function")
    if ":" in name:
        shape = features[0].shape[1:] if isinstance(features[0], np.ndarray) else ()
        return _import_factory(name, options, shape, classes)
    check_names([name], MODELS, "model")
    return _make_built_in(name, options, features, classes)


def is_built_in(model: Model) -> bool:
    """Whether a model is one of `MODELS`, by its name."""
    name = model.get("name") if isinstance(model, Mapping) else model
    return isinstance(name, str) and ":" not in name


def convert_features(factory: Callable[[], Any], features: Any) -> Any:
    """Convert features for a model: built-in models need floats, except for tokens and bytes.

    Args:
        factory: Factory of the model.
        features: The features.
    """
    if (
        isinstance(features, np.ndarray)
        and isinstance(factory, BuiltIn)
        and not factory.reading.tokens
        and features.dtype.kind in "iu"
    ):
        return features if features.dtype == np.uint8 else features.astype(np.float32)
    return features


def _make_built_in(name: str, given: dict[str, Any], features: Sequence[NDArray[Any]], classes: int | None) -> BuiltIn:
    check_names(given, MODELS[name], f"option of model {name}")
    if classes is None:
        raise BadSetting(f"model {name} needs the number of outputs, which is unknown for these labels: set classes")
    options = {key: _check_option(name, key, given.get(key, default)) for key, default in MODELS[name].items()}
    reading = read_shape(name, features[0].shape[1:], features[0].dtype, options.pop("channels", "auto"))
    if reading.tokens:
        options["vocabulary"] = _vocabulary(features, options["vocabulary"])
    elif name == "lstm":
        del options["vocabulary"], options["embedding"]
        if "vocabulary" in given:
            raise BadSetting(f"vocabulary = {given['vocabulary']} is for tokens: whole numbers, one list per sample")
    pixels = features[0].dtype == np.uint8 and not reading.tokens
    return BuiltIn(name, reading, classes, tuple(options.items()), pixels)


def _check_option(name: str, key: str, value: Any) -> Any:
    default = MODELS[name][key]
    if key == "channels":
        if value not in CHANNELS:
            raise BadSetting(f"channels = {value!r} of model {name} must be one of {', '.join(CHANNELS)}")
        return value
    if isinstance(default, tuple):
        sizes = value if isinstance(value, list | tuple) else [value]
        return tuple(_check_size(name, key, size) for size in sizes)
    return None if value is None and default is None else _check_size(name, key, value)


def _check_size(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise BadSetting(f"{key} = {value!r} of model {name} must be a whole number from 1 to {LARGEST}")
    return value


def _vocabulary(features: Sequence[NDArray[Any]], given: int | None) -> int:
    low, top = min(int(part.min()) for part in features), max(int(part.max()) for part in features)
    if low < 0 or (given is not None and top >= given) or top >= LARGEST:
        most = (given or LARGEST) - 1
        raise BadData(f"tokens run from {low} to {top}; they must be 0 to {most}, or set vocabulary")
    return given if given is not None else top + 1


def _import_factory(
    place: str, options: Mapping[str, Any], shape: tuple[int, ...], classes: int | None
) -> Callable[[], Any]:
    from fedbalancer.data.registry import import_attribute

    function = import_attribute(place, "model")
    if not callable(function) or (hasattr(function, "state_dict") and not isinstance(function, type)):
        kind = type(function).__name__
        raise BadData(f"model {place} is an object, {kind}; it must be a function or class that makes a torch module")
    parameters = signature(function).parameters
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_any:
        check_names(options, parameters, f"parameter of model {place}")
    known = {"shape": shape, "classes": classes}
    given = {**{key: value for key, value in known.items() if key in parameters}, **options}
    for key, parameter in parameters.items():
        needed = parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD
        if needed and parameter.kind is not Parameter.VAR_POSITIONAL and key not in given:
            raise BadSetting(f"model {place} needs a value for {key}; add it next to the model's name")
    return partial(function, **given)


def _format_value(value: Any) -> str:
    return "-".join(str(part) for part in value) or "none" if isinstance(value, tuple) else str(value)


WANTED = {
    "cnn1d": "(steps,), (channels, steps) or (steps, channels)",
    "cnn2d": "(height, width), (channels, height, width) or (height, width, channels)",
    "lstm": "(steps,), (channels, steps) or (steps, channels)",
}
EXTENTS = {"cnn1d": 1, "cnn2d": 2, "lstm": 1}


@dataclass(frozen=True)
class Reading:
    """The interpretation of a sample by a model.

    Args:
        shape: Shape of the sample.
        channels: Number of channels.
        extent: Shape of one channel: steps or pixels. Empty for plain numbers.
        last: Whether the channels are the last axis of the shape.
        tokens: Whether the values are tokens.
    """

    shape: tuple[int, ...]
    channels: int
    extent: tuple[int, ...]
    last: bool = False
    tokens: bool = False

    def __str__(self) -> str:
        if not self.extent:
            return f"{self.channels} numbers"
        if self.tokens:
            return f"{self.extent[0]} tokens"
        size = " x ".join(str(side) for side in self.extent)
        plural = "s" if self.channels > 1 else ""
        return f"{self.channels} channel{plural} of {size} {'steps' if len(self.extent) == 1 else 'pixels'}"


def read_shape(model: str, shape: tuple[int, ...], dtype: np.dtype[Any], channels: str = "auto") -> Reading:
    """Return how a model interprets a sample.

    Args:
        model: Name of a built-in model.
        shape: Shape of a sample.
        dtype: Type of its values.
        channels: Axis of the channels: "first", "last" or "auto" (the shorter one).

    Raises:
        BadData: If the model cannot read samples of this shape.

    >>> str(read_shape("cnn1d", (128, 9), np.dtype("float32")))
    '9 channels of 128 steps'
    """
    if model == "mlp":
        return Reading(shape, math.prod(shape), ())
    sides = EXTENTS[model]
    if len(shape) not in (sides, sides + 1) or 0 in shape:
        wanted = WANTED[model]
        raise BadData(f"model {model} needs samples of shape {wanted}, not {shape}; mlp takes any shape")
    if len(shape) == sides:
        tokens = model == "lstm" and dtype.kind in "iu"
        return Reading(shape, 1, shape, tokens=tokens)
    last = channels == "last" or (channels == "auto" and shape[-1] < shape[0])
    return Reading(shape, shape[-1 if last else 0], shape[:-1] if last else shape[1:], last)


def mlp(reading: Reading, classes: int, scale: float, hidden: tuple[int, ...]) -> nn.Module:
    """Make a multilayer perceptron with ReLU; without hidden layers, a logistic regression."""
    from torch import nn

    layers: list[nn.Module] = [_make_input_layer(reading, scale), nn.Flatten()]
    width = reading.channels
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))


def cnn1d(reading: Reading, classes: int, scale: float, filters: tuple[int, ...], width: int) -> nn.Module:
    """Make a 1-D CNN: convolutions with ReLU and max pooling by two, then one dense layer."""
    from torch import nn

    return _make_cnn(nn.Conv1d, nn.MaxPool1d, reading, classes, scale, filters, width)


def cnn2d(reading: Reading, classes: int, scale: float, filters: tuple[int, ...], width: int) -> nn.Module:
    """Make a 2-D CNN: convolutions with ReLU and max pooling by two, then one dense layer."""
    from torch import nn

    return _make_cnn(nn.Conv2d, nn.MaxPool2d, reading, classes, scale, filters, width)


def lstm(
    reading: Reading, classes: int, scale: float, hidden: int, layers: int, embedding: int = 0, vocabulary: int = 0
) -> nn.Module:
    """Make an LSTM over time steps, or over embedded tokens, and a dense layer on its last output."""
    from torch import nn

    class LstmNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(vocabulary, embedding) if reading.tokens else _make_input_layer(reading, scale)
            self.lstm = nn.LSTM(embedding if reading.tokens else reading.channels, hidden, layers, batch_first=True)
            self.head = nn.Linear(hidden, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = self.first(x)
            outputs, _ = self.lstm(steps if reading.tokens else steps.transpose(1, 2))
            scores: torch.Tensor = self.head(outputs[:, -1])
            return scores

    return LstmNet()


def _make_cnn(
    convolution: type[nn.Conv1d] | type[nn.Conv2d],
    pooling: type[nn.MaxPool1d] | type[nn.MaxPool2d],
    reading: Reading,
    classes: int,
    scale: float,
    filters: tuple[int, ...],
    width: int,
) -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = [_make_input_layer(reading, scale)]
    channels, extent = reading.channels, reading.extent
    for count in filters:
        layers += [convolution(channels, count, width, padding="same"), nn.ReLU()]
        channels = count
        if min(extent) >= 2:  # a single step cannot be halved
            layers.append(pooling(2))
            extent = tuple(side // 2 for side in extent)
    for side in extent:
        channels *= side
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))


def _make_input_layer(reading: Reading, scale: float) -> nn.Module:
    """Make a layer that scales samples and moves their channels to the first axis."""
    from torch import nn

    class Prepare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if reading.extent and len(reading.extent) == len(reading.shape):
                x = x.unsqueeze(1)
            elif reading.last:
                x = x.movedim(-1, 1)
            return x if scale == 1.0 else x * scale

    return Prepare()
