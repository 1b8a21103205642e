"""Layers whose counterpart in TensorFlow is more than one operation: convolution, pooling, norm, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedbalancer.export.windows import Spatial, windows


class Refused(Exception):
    """What an operation cannot do here."""


class Tools(Protocol):
    """What a layer is made of."""

    tf: Any
    spatial: Spatial


def unfold(t: Tools, x: Any, dim: int, size: int, step: int) -> Any:
    dim = dim % len(x.shape)
    starts = np.arange((x.shape[dim] - size) // step + 1) * step
    places = (starts[:, None] + np.arange(size)).astype(np.int32)
    gathered = t.tf.gather(x, places, axis=dim)
    order = [axis for axis in range(len(x.shape) + 1) if axis != dim + 1]
    return t.tf.transpose(gathered, [*order, dim + 1])


def _convolution_how(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, odd: bool) -> Any:
    if odd:
        raise Refused("is supported without groups and not transposed only")
    return windows(tuple(x.shape[2:]), tuple(weight.shape[2:]), stride, padding, dilation)


def convolution(
    t: Tools, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, _: Any,
    groups: int,
) -> Any:  # fmt: skip
    how = _convolution_how(x, weight, stride, padding, dilation, transposed or groups != 1)
    return t.spatial.convolution(x, weight, bias, how)


def convolution_backward(
    t: Tools, grad: Any, x: Any, weight: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    __: Any, groups: int, wanted: Sequence[bool],
) -> Any:  # fmt: skip
    how = _convolution_how(x, weight, stride, padding, dilation, transposed or groups != 1)
    return t.spatial.convolution_backward(grad, x, weight, how, wanted)


def _pool_how(x: Any, *given: Any, ceil: bool) -> Any:
    size = tuple(x.shape[2:])
    kernel, stride, padding, dilation = (tuple(part) * len(size) if len(part) == 1 else tuple(part) for part in given)
    return windows(size, kernel, stride or kernel, padding, dilation, ceil)


def max_pool(
    t: Tools, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    return t.spatial.max_pool(x, _pool_how(x, kernel, stride, padding, dilation, ceil=ceil))


def max_pool_backward(
    t: Tools, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, which: Any
) -> Any:
    return t.spatial.max_pool_backward(grad, x, which, _pool_how(x, kernel, stride, padding, dilation, ceil=ceil))


def _average(x: Any, given: Sequence[Any], ceil: bool, pads: bool, divisor: int | None) -> tuple[Any, Any]:
    """The windows of an average, and by what their sums are divided."""
    kernel, stride, padding = given
    how = _pool_how(x, kernel, stride, padding, (1,), ceil=ceil)
    inside = (how.index < how.places).sum(axis=1)
    if divisor is None and pads and ceil and (inside < how.index.shape[1]).any():
        raise Refused("with ceil_mode is supported with count_include_pad=False only")
    counts = np.full(len(inside), divisor or how.index.shape[1]) if pads or divisor else inside
    return how, (1.0 / counts).astype(np.float32)


def average_pool(
    t: Tools, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, pads: bool = True,
    divisor: int | None = None,
) -> Any:  # fmt: skip
    return t.spatial.average_pool(x, *_average(x, (kernel, stride, padding), ceil, pads, divisor))


def average_pool_backward(
    t: Tools, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, pads: bool, divisor: int | None
) -> Any:
    how, shares = _average(x, (kernel, stride, padding), ceil, pads, divisor)
    return t.spatial.average_pool_backward(grad, x, how, shares)


def batch_norm(
    t: Tools, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: float, eps: float
) -> Any:
    """By the statistics of the batch at hand: (normalised, mean, 1 / deviation)."""
    if not training or mean is not None:
        raise Refused("with running statistics is not supported; use track_running_stats=False or a group norm")
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
    """As a product: nothing built in adds up rows by number."""
    if padding != -1 or scaled:
        raise Refused("with padding_idx or scale_grad_by_freq is not supported")
    hot = t.tf.one_hot(t.tf.reshape(rows, (-1,)), count, dtype=grad.dtype)
    return t.tf.matmul(hot, t.tf.reshape(grad, (-1, grad.shape[-1])), transpose_a=True)
