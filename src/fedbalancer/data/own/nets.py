"""The built-in models, and how they interpret the shape of a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData

if TYPE_CHECKING:
    import torch
    from torch import nn


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
