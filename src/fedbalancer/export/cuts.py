"""Taking tensors apart and putting them together, as torch does it and LiteRT can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedbalancer.export.layers import Refused, Tools
from fedbalancer.export.trace import PerBatch


def cut(t: Tools, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    ends = None if end is None or isinstance(end, PerBatch) or end > 2**31 else end
    return x[(slice(None),) * (dim % len(x.shape)) + (slice(start, ends, step),)]


def slice_scatter(
    t: Tools, base: Any, part: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Only into zeros as autograd does it: the rest keeps what the base has."""
    dim, size = dim % len(base.shape), base.shape[dim]
    if step != 1 or size is None:
        raise Refused("into every so many places of a batch is not supported")
    begin, stop, _ = slice(start, None if end is None or end > 2**31 else end).indices(size)
    whole = (slice(None),) * dim
    before = [base[(*whole, slice(0, begin))]] if begin else []  # LiteRT takes 0:0 for everything
    after = [base[(*whole, slice(stop, size))]] if stop < size else []
    return t.tf.concat([*before, part, *after], axis=dim)


def select(t: Tools, x: Any, dim: int, place: int) -> Any:
    return x[(slice(None),) * (dim % len(x.shape)) + (place,)]


def select_scatter(t: Tools, base: Any, part: Any, dim: int, place: int) -> Any:
    dim = dim % len(base.shape)
    place = place % base.shape[dim]
    return slice_scatter(t, base, t.tf.expand_dims(part, dim), dim, place, place + 1)


def pad(t: Tools, x: Any, pads: Sequence[int], value: float = 0.0) -> Any:
    """torch gives the last dimension first. Less than nothing cuts off, as the gradient of a padding does."""
    pairs = [(0, 0)] * (len(x.shape) - len(pads) // 2) + list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    cut = tuple(slice(max(-low, 0), -max(-high, 0) or None) for low, high in pairs)
    return t.tf.pad(x[cut], [(max(low, 0), max(high, 0)) for low, high in pairs], constant_values=value or 0.0)


def cat(t: Tools, parts: Sequence[Any], dim: int = 0) -> Any:
    return t.tf.concat(list(parts), axis=dim)


def split(t: Tools, x: Any, sizes: Any, dim: int = 0) -> Any:
    dim = dim % len(x.shape)
    sizes = [sizes] * math.ceil(x.shape[dim] / sizes) if isinstance(sizes, int) else list(sizes)
    sizes[-1] = x.shape[dim] - sum(sizes[:-1])
    return t.tf.split(x, sizes, axis=dim)
