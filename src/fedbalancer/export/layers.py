"""torch layers that need more than one operation elsewhere: convolution, pooling, norm, embedding, slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fedbalancer.export.trace import PerBatch
from fedbalancer.export.windows import Spatial, make_windows


class Unsupported(Exception):
    """An operation is used in a way that cannot be converted."""


class Tools(Protocol):
    """Building blocks of layers: TensorFlow's operations, and spatial operations on top of them."""

    tf: Any
    spatial: Spatial


def unfold(t: Tools, x: Any, dim: int, size: int, step: int) -> Any:
    dim = dim % len(x.shape)
    starts = np.arange((x.shape[dim] - size) // step + 1) * step
    places = (starts[:, None] + np.arange(size)).astype(np.int32)
    gathered = t.tf.gather(x, places, axis=dim)
    order = [axis for axis in range(len(x.shape) + 1) if axis != dim + 1]
    return t.tf.transpose(gathered, [*order, dim + 1])


def _convolution_windows(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, odd: bool) -> Any:
    if odd:
        raise Unsupported("is supported without groups and not transposed only")
    return make_windows(tuple(x.shape[2:]), tuple(weight.shape[2:]), stride, padding, dilation)


def convolution(
    t: Tools, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, _: Any,
    groups: int,
) -> Any:  # fmt: skip
    windows = _convolution_windows(x, weight, stride, padding, dilation, transposed or groups != 1)
    return t.spatial.convolution(x, weight, bias, windows)


def convolution_backward(
    t: Tools, grad: Any, x: Any, weight: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    __: Any, groups: int, wanted: Sequence[bool],
) -> Any:  # fmt: skip
    windows = _convolution_windows(x, weight, stride, padding, dilation, transposed or groups != 1)
    return t.spatial.convolution_backward(grad, x, weight, windows, wanted)


def _pool_windows(x: Any, *parts: Any, ceil: bool) -> Any:
    size = tuple(x.shape[2:])
    kernel, stride, padding, dilation = (tuple(part) * len(size) if len(part) == 1 else tuple(part) for part in parts)
    return make_windows(size, kernel, stride or kernel, padding, dilation, ceil)


def max_pool(
    t: Tools, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    return t.spatial.max_pool(x, _pool_windows(x, kernel, stride, padding, dilation, ceil=ceil))


def max_pool_backward(
    t: Tools, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, which: Any
) -> Any:
    return t.spatial.max_pool_backward(grad, x, which, _pool_windows(x, kernel, stride, padding, dilation, ceil=ceil))


def _average_windows(x: Any, parts: Sequence[Any], ceil: bool, pads: bool, divisor: int | None) -> tuple[Any, Any]:
    """Return the windows of an average pooling, and the factors of their sums."""
    kernel, stride, padding = parts
    windows = _pool_windows(x, kernel, stride, padding, (1,), ceil=ceil)
    inside = (windows.index < windows.places).sum(axis=1)
    if divisor is None and pads and ceil and (inside < windows.index.shape[1]).any():
        raise Unsupported("with ceil_mode is supported with count_include_pad=False only")
    counts = np.full(len(inside), divisor or windows.index.shape[1]) if pads or divisor else inside
    return windows, (1.0 / counts).astype(np.float32)


def average_pool(
    t: Tools, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, pads: bool = True,
    divisor: int | None = None,
) -> Any:  # fmt: skip
    return t.spatial.average_pool(x, *_average_windows(x, (kernel, stride, padding), ceil, pads, divisor))


def average_pool_backward(
    t: Tools, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, pads: bool, divisor: int | None
) -> Any:
    windows, shares = _average_windows(x, (kernel, stride, padding), ceil, pads, divisor)
    return t.spatial.average_pool_backward(grad, x, windows, shares)


def batch_norm(
    t: Tools, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: float, eps: float
) -> Any:
    """Normalise by the statistics of the current batch. Returns (normalised, mean, 1 / deviation)."""
    if not training or mean is not None:
        raise Unsupported("with running statistics is not supported; use track_running_stats=False or a group norm")
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    centre = t.tf.reduce_mean(x, axis=axes, keepdims=True)
    scale = t.tf.math.rsqrt(t.tf.reduce_mean(t.tf.square(x - centre), axis=axes, keepdims=True) + eps)
    one = (1, -1, *(1,) * (len(x.shape) - 2))
    out = (x - centre) * scale
    out = out if weight is None else out * t.tf.reshape(weight, one) + t.tf.reshape(bias, one)
    return out, t.tf.reshape(centre, (-1,)), t.tf.reshape(scale, (-1,))


def embedding(t: Tools, table: Any, rows: Any, *_: Any) -> Any:
    return t.tf.gather(table, rows)


def embedding_backward(t: Tools, grad: Any, rows: Any, count: int, padding: int, scaled: bool) -> Any:
    """Compute the gradient as a matrix product, because no built-in operator sums rows by index."""
    if padding != -1 or scaled:
        raise Unsupported("with padding_idx or scale_grad_by_freq is not supported")
    hot = t.tf.one_hot(t.tf.reshape(rows, (-1,)), count, dtype=grad.dtype)
    return t.tf.matmul(hot, t.tf.reshape(grad, (-1, grad.shape[-1])), transpose_a=True)


def slice_tensor(
    t: Tools, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    ends = None if end is None or isinstance(end, PerBatch) or end > 2**31 else end
    return x[(slice(None),) * (dim % len(x.shape)) + (slice(start, ends, step),)]


def slice_scatter(
    t: Tools, base: Any, part: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Write a slice into a tensor, as autograd does for the gradient of a slice."""
    dim, size = dim % len(base.shape), base.shape[dim]
    if step != 1 or size is None:
        raise Unsupported("with a step, or over the batch, is not supported")
    begin, stop, _ = slice(start, None if end is None or end > 2**31 else end).indices(size)
    whole = (slice(None),) * dim
    before = [base[(*whole, slice(0, begin))]] if begin else []  # LiteRT reads 0:0 as everything
    after = [base[(*whole, slice(stop, size))]] if stop < size else []
    return t.tf.concat([*before, part, *after], axis=dim)


def select(t: Tools, x: Any, dim: int, place: int) -> Any:
    return x[(slice(None),) * (dim % len(x.shape)) + (place,)]


def select_scatter(t: Tools, base: Any, part: Any, dim: int, place: int) -> Any:
    dim = dim % len(base.shape)
    place = place % base.shape[dim]
    return slice_scatter(t, base, t.tf.expand_dims(part, dim), dim, place, place + 1)


def pad(t: Tools, x: Any, pads: Sequence[int], value: float = 0.0) -> Any:
    """Pad as torch does, last dimension first. Negative padding crops, as in the gradient of a padding."""
    pairs = [(0, 0)] * (len(x.shape) - len(pads) // 2) + list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    crops = tuple(slice(max(-low, 0), -max(-high, 0) or None) for low, high in pairs)
    return t.tf.pad(x[crops], [(max(low, 0), max(high, 0)) for low, high in pairs], constant_values=value or 0.0)


def cat(t: Tools, parts: Sequence[Any], dim: int = 0) -> Any:
    return t.tf.concat(list(parts), axis=dim)


def split(t: Tools, x: Any, sizes: Any, dim: int = 0) -> Any:
    dim = dim % len(x.shape)
    sizes = [sizes] * math.ceil(x.shape[dim] / sizes) if isinstance(sizes, int) else list(sizes)
    sizes[-1] = x.shape[dim] - sum(sizes[:-1])
    return t.tf.split(x, sizes, axis=dim)


LAYERS: dict[str, Callable[..., Any]] = {
    "aten.constant_pad_nd.default": pad,
    "aten.unfold.default": unfold,
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.max_pool2d_with_indices_backward.default": max_pool_backward,
    "aten.avg_pool2d.default": average_pool,
    "aten.avg_pool2d_backward.default": average_pool_backward,
    "aten.native_batch_norm.default": batch_norm,
    "aten.slice.Tensor": slice_tensor,
    "aten.embedding_dense_backward.default": embedding_backward,
}
"""Maps torch's operation names to functions of this module, for layers that both runtimes need."""
