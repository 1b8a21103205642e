"""Runs a traced training step with the tensors of another library, and the torch layers that need several operations.

Convolution and pooling gather windows, in any number of dimensions. A window is a list of input positions, so a
convolution is one gather and one matrix product. Its gradient is computed the same way, from the windows in which a
position occurs. LiteRT has a gather operator, but none for the gradients of convolution and pooling.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.export.trace import PerBatch, Ref, Step, TracedFunction

LOWEST = -3.0e38
"""Value beyond the edge in a max pooling; smaller than any input."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Windows over the positions of an input.

    Args:
        out: Shape of the output.
        places: Number of input positions.
        index: Input position per window and place in it; `places` stands for beyond the edge.
        occurs: For every input position, its occurrences in the flattened `index`; `index.size` stands for none.
    """

    out: Shape
    places: int
    index: NDArray[np.int32]
    occurs: NDArray[np.int32]


def make_windows(
    size: Shape, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil: bool = False,
) -> Windows:  # fmt: skip
    """Return the windows of a convolution or pooling, as torch defines them.

    Args:
        size: Spatial shape of the input.
        kernel: Kernel size per dimension.
        stride: Stride per dimension.
        padding: Padding per dimension.
        dilation: Dilation per dimension.
        ceil: Whether to round the output size up.

    Returns:
        The windows.
    """
    rows = [_axis(*each, ceil) for each in zip(size, kernel, stride, padding, dilation, strict=True)]
    out = tuple(len(axis) for axis in rows)
    places = math.prod(size)
    index, inside = np.zeros((1, 1), dtype=np.int64), np.ones((1, 1), dtype=bool)
    for axis, length in zip(rows, size, strict=True):
        index = _cross(index * length, np.clip(axis, 0, length - 1))
        inside = _cross(inside, (axis >= 0) & (axis < length), both=True)
    positions = np.where(inside, index, places).astype(np.int32)
    return Windows(out, places, positions, _occurrences(positions, places))


def _axis(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> NDArray[np.int64]:
    """Return positions along one axis, per window and place in it."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:  # a window must begin inside
        count -= 1
    starts = np.arange(count) * stride - padding
    return starts[:, None] + np.arange(kernel) * dilation


def _cross(a: NDArray[Any], b: NDArray[Any], both: bool = False) -> NDArray[Any]:
    """Combine every window of one axis with every window of the next."""
    pairs = a[:, None, :, None]
    joined = pairs & b[None, :, None, :] if both else pairs + b[None, :, None, :]
    shape = a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]
    return np.reshape(joined, shape)


def _occurrences(index: NDArray[np.int32], places: int) -> NDArray[np.int32]:
    flat = index.ravel()
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=places + 1)[:places]
    occurs = np.full((places, max(int(counts.max()), 1)), len(flat), dtype=np.int32)
    starts = np.cumsum(counts) - counts
    for place in range(places):
        occurs[place, : counts[place]] = order[starts[place] : starts[place] + counts[place]]
    return occurs


class Spatial:
    """Convolution and pooling by built-in operators of LiteRT. Tensors are (sample, channel, ...), as in torch."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf

    def convolution(self, x: Any, weight: Any, bias: Any, windows: Windows) -> Any:
        patches = self._patches(x, windows, 0.0)
        out = self.tf.matmul(patches, self._kernel(weight))
        out = out if bias is None else out + bias
        return self._channels_first(self.tf.reshape(out, (-1, len(windows.index), weight.shape[0])), windows.out)

    def convolution_backward(
        self, grad: Any, x: Any, weight: Any, windows: Windows, wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the wanted gradients of input, weights and bias; None for the others."""
        tf, outs = self.tf, weight.shape[0]
        rows = tf.reshape(self._places_first(grad), (-1, outs))
        gradients: list[Any] = [None, None, None]
        if wanted[0]:
            shares = tf.matmul(rows, self._kernel(weight), transpose_b=True)
            shares = tf.reshape(shares, (-1, windows.index.size, weight.shape[1]))
            gradients[0] = self._channels_first(self._gather_back(shares, windows), tuple(x.shape[2:]))
        if wanted[1]:
            kernel = tf.matmul(self._patches(x, windows, 0.0), rows, transpose_a=True)
            kernel = tf.reshape(kernel, (windows.index.shape[1], weight.shape[1], outs))
            gradients[1] = tf.reshape(tf.transpose(kernel, (2, 1, 0)), weight.shape)
        if wanted[2]:
            gradients[2] = tf.reduce_sum(rows, axis=0)
        return gradients

    def max_pool(self, x: Any, windows: Windows) -> tuple[Any, Any]:
        """Return the largest value of every window and its place in it; the first in a tie, as in torch."""
        tf = self.tf
        gathered = self._windows(x, windows, LOWEST)
        largest = self._channels_first(tf.reduce_max(gathered, axis=2), windows.out)
        return largest, tf.argmax(gathered, axis=2, output_type=tf.int32)

    def max_pool_backward(self, grad: Any, x: Any, which: Any, windows: Windows) -> Any:
        tf, (_, kernel) = self.tf, windows.index.shape
        mask = tf.equal(which[:, :, None, :], np.arange(kernel, dtype=np.int32)[None, None, :, None])
        shares = tf.where(mask, self._places_first(grad)[:, :, None, :], 0.0)
        shares = tf.reshape(shares, (-1, windows.index.size, x.shape[1]))
        return self._channels_first(self._gather_back(shares, windows), tuple(x.shape[2:]))

    def average_pool(self, x: Any, windows: Windows, shares: NDArray[np.float32]) -> Any:
        """Return the sum of every window times its factor."""
        sums = self.tf.reduce_sum(self._windows(x, windows, 0.0), axis=2)
        return self._channels_first(sums * self.tf.constant(shares[None, :, None]), windows.out)

    def average_pool_backward(self, grad: Any, x: Any, windows: Windows, shares: NDArray[np.float32]) -> Any:
        tf, (_, kernel) = self.tf, windows.index.shape
        each = (self._places_first(grad) * tf.constant(shares[None, :, None]))[:, :, None, :]
        spread = tf.reshape(each * tf.ones((1, 1, kernel, 1)), (-1, windows.index.size, x.shape[1]))
        return self._channels_first(self._gather_back(spread, windows), tuple(x.shape[2:]))

    def _kernel(self, weight: Any) -> Any:
        """Reshape (out, in, places) to (places x in, out)."""
        tf, (outs, ins) = self.tf, weight.shape[:2]
        flat = tf.reshape(weight, (outs, ins, -1))
        return tf.reshape(tf.transpose(flat, (2, 1, 0)), (-1, outs))

    def _patches(self, x: Any, windows: Windows, beyond: float) -> Any:
        """Return one row per window: (samples x windows, places x channels)."""
        return self.tf.reshape(self._windows(x, windows, beyond), (-1, windows.index.shape[1] * x.shape[1]))

    def _windows(self, x: Any, windows: Windows, beyond: float) -> Any:
        """Return (sample, window, place in it, channel)."""
        tf, places = self.tf, self._places_first(x)
        if (windows.index == windows.places).any():
            places = tf.pad(places, ((0, 0), (0, 1), (0, 0)), constant_values=beyond)
        gathered = tf.gather(places, windows.index.ravel(), axis=1)
        return tf.reshape(gathered, (-1, *windows.index.shape, x.shape[1]))

    def _gather_back(self, shares: Any, windows: Windows) -> Any:
        """Sum what every input position gets from its windows: (sample, place, channel)."""
        tf, (places, most), channels = self.tf, windows.occurs.shape, shares.shape[2]
        if (windows.occurs == windows.index.size).any():
            shares = tf.pad(shares, ((0, 0), (0, 1), (0, 0)))
        gathered = tf.gather(shares, windows.occurs.ravel(), axis=1)
        if most == 1:
            return gathered
        return tf.reduce_sum(tf.reshape(gathered, (-1, places, most, channels)), axis=2)

    def _places_first(self, x: Any) -> Any:
        """Reshape (sample, channel, ...) to (sample, place, channel)."""
        return self.tf.transpose(self.tf.reshape(x, (-1, x.shape[1], math.prod(x.shape[2:]))), (0, 2, 1))

    def _channels_first(self, places: Any, size: Shape) -> Any:
        return self.tf.reshape(self.tf.transpose(places, (0, 2, 1)), (-1, places.shape[2], *size))


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


class Replay(ABC):
    """Runs traced steps one by one. `tf` provides the operations that layers use, under TensorFlow's names."""

    supported = ""
    """Description of the available operations, for error messages."""

    def __init__(self, tf: Any) -> None:
        self.tf, self.spatial = tf, Spatial(tf)
        self._batch: Any = None

    @abstractmethod
    def operation(self, kind: str) -> Callable[..., Any] | None:
        """Return the counterpart of a torch operation, called as f(replay, *args, **options), or None."""

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """Convert an array to a tensor."""

    def mark_layer(self, step: Step) -> AbstractContextManager[Any]:
        """Return a context in which created operations may be marked with the step's layer."""
        return nullcontext()

    def run(self, traced: TracedFunction, inputs: Sequence[Any], batch: Any) -> list[Any]:
        """Run all steps.

        Args:
            traced: The traced function.
            inputs: Its inputs.
            batch: Number of samples, as a number of `tf`.

        Returns:
            The outputs.
        """
        self._batch, remaining = batch, iter(inputs)
        results: dict[str, Any] = {}
        for step in traced.steps:
            results[step.name] = next(remaining) if step.kind == "input" else self._run_step(step, results)
        return [None if output is None else results[output.name] for output in traced.outputs]

    def _run_step(self, step: Step, results: Mapping[str, Any]) -> Any:
        if step.kind == "constant":
            return self.constant(step.args[0])
        operation = self.operation(step.kind)
        if operation is None:
            raise BadData(f"{step.place}: the operation {step.kind} has no counterpart {self.supported}")
        args = [self._resolve(arg, results) for arg in step.args]
        try:
            with self.mark_layer(step):
                return operation(self, *args, **{key: self._resolve(v, results) for key, v in step.options.items()})
        except Unsupported as reason:
            raise BadData(f"{step.place}: {step.kind} {reason}") from reason

    def _resolve(self, arg: Any, results: Mapping[str, Any]) -> Any:
        if isinstance(arg, Ref):
            return results[arg.name]
        return tuple(self._resolve(each, results) for each in arg) if isinstance(arg, tuple) else arg


def sgd_step(
    tf: Any, now: Sequence[Any], start: Sequence[Any], gradients: Sequence[Any], rate: Any, mu: Any, clip_norm: Any
) -> dict[int, Any]:
    """Return the weights after an SGD step with torch's gradient clipping, by tensor number.

    Tensors without a gradient are not returned.
    """
    pairs = enumerate(zip(gradients, start, strict=True))
    moves = {n: gradient + mu * (now[n] - begun) for n, (gradient, begun) in pairs if gradient is not None}
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(move)) for move in moves.values()]))
    step = rate * tf.minimum(1.0, clip_norm / (norm + 1e-6))
    return {n: now[n] - step * move for n, move in moves.items()}
