"""How a built-in model reads a sample: which side is channels, which is time, which are pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData

WANTED = {
    "cnn1d": "(steps,), (channels, steps) or (steps, channels)",
    "cnn2d": "(height, width), (channels, height, width) or (height, width, channels)",
    "lstm": "(steps,), (channels, steps) or (steps, channels)",
}
EXTENTS = {"cnn1d": 1, "cnn2d": 2, "lstm": 1}


@dataclass(frozen=True)
class Reading:
    """A sample of `shape` as `channels` of an `extent`. With `last`, the channels are the last side of the shape."""

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
    """The reading of a sample by a model.

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
