"""Convolution, max-pooling and ReLU as one layer, with or without a batch norm, by the kernel in `conv.c`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch, strided

MAX_NUMBERS = 2**24
"""Maximum numbers in an image, in its outputs or in all filters: the kernel stores positions in 32 bits."""

_FIELDS = (
    "images", "channels", "height", "width", "filters", "rows", "columns", "top", "left", "padded_height",
    "padded_width", "pool_rows", "pool_columns", "out_height", "out_width", "used_height", "used_width", "relu",
)  # fmt: skip


class Block(ctypes.Structure):
    """The sizes of one call, as a C struct."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS)


@dataclass(frozen=True)
class Shape:
    """The shape of a block besides its filters; in one dimension the height is 1.

    Args:
        padding: Zeros at (top, bottom, left, right).
        pool: Rows and columns of a pooling window; (1, 1) without pooling.
        ceil: Whether incomplete pooling windows count.
        relu: Whether a ReLU follows.
    """

    padding: tuple[int, int, int, int]
    pool: tuple[int, int] = (1, 1)
    ceil: bool = False
    relu: bool = True

    def outputs(self, sides: tuple[int, int], window: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return height and width before the pooling, as far as its windows reach, and after it."""
        top, bottom, left, right = self.padding
        full = (sides[0] + top + bottom - window[0] + 1, sides[1] + left + right - window[1] + 1)
        pooled = [-(-side // pool) if self.ceil else side // pool for side, pool in zip(full, self.pool, strict=True)]
        used = [min(side, count * pool) for side, count, pool in zip(full, pooled, self.pool, strict=True)]
        return (used[0], used[1]), (pooled[0], pooled[1])


class ConvBlock(nn.Module):
    """A `Conv1d` or `Conv2d` of stride 1 with its pooling and ReLU.

    Inputs and outputs have torch's usual shape (batch, channels, ...); in memory the outputs have the channels last.

    Args:
        conv: The convolution, whose parameters are shared.
        shape: Padding, pooling and ReLU.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, shape: Shape) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.shape = shape
        self._calls: dict[torch.Size, Call] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        call = self._calls.get(x.shape)
        if call is None:
            call = self._calls[x.shape] = self.call_for(x.shape)
        outputs: Tensor = _Convolution.apply(x, self.weight, self.bias, call)  # type: ignore[no-untyped-call]
        return outputs

    def call_for(self, shape: torch.Size) -> Call:
        """Return the kernel call for inputs of this shape."""
        return Call(make_block(shape, self.weight.shape, self.shape), tuple(shape), tuple(self.weight.shape))


def make_block(inputs: torch.Size, weight: torch.Size, shape: Shape) -> Block:
    """Compute the sizes of a call.

    Args:
        inputs: Shape of the inputs.
        weight: Shape of the filters.
        shape: Padding, pooling and ReLU.

    Raises:
        ValueError: If the shapes do not fit together.
    """
    images, channels, *sides = inputs
    filters, depth, *window = weight
    if channels != depth or len(sides) != len(window):
        raise ValueError(f"an input of shape {tuple(inputs)} for filters of shape {tuple(weight)}")
    height, width = (1, *sides)[-2:]
    rows, columns = (1, *window)[-2:]
    (used_height, used_width), (out_height, out_width) = shape.outputs((height, width), (rows, columns))
    if out_height < 1 or out_width < 1:
        raise ValueError(f"an input of {height} x {width} is too small for the window and the pooling")
    top, bottom, left, right = shape.padding
    return Block(
        images, channels, height, width, filters, rows, columns, top, left, height + top + bottom,
        width + left + right, *shape.pool, out_height, out_width, used_height, used_width, shape.relu,
    )  # fmt: skip


class Call:
    """The kernel for one shape of input: the memory that it needs, and its calls with checked tensors.

    Args:
        block: The sizes.
        inputs: Shape of the inputs.
        filters: Shape of the filters.

    Raises:
        ValueError: If the shapes are too large for the kernel.
    """

    def __init__(self, block: Block, inputs: tuple[int, ...], filters: tuple[int, ...]) -> None:
        sides = (block.out_height, block.out_width)[4 - len(inputs) :]
        self.outputs = (block.images, *sides, block.filters)
        largest = max(block.padded_height * block.padded_width * block.channels, math.prod(filters))
        if max(largest, math.prod(self.outputs[1:])) > MAX_NUMBERS:
            raise ValueError(f"an input of shape {inputs} for filters of shape {filters} is too large for the kernel")
        self._library, self._block, self._inputs, self._filters = load_kernel(), block, inputs, filters
        self._shown = (block.images, block.filters, *sides)
        self._strides: dict[tuple[int, ...], Any] = {}
        self.padded = (int(self._library.conv_padded_floats(block)),)
        self._forward_floats = int(self._library.conv_forward_floats(block))
        self._backward_floats = int(self._library.conv_backward_floats(block))

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, padded: Tensor, outputs: Tensor, places: Tensor) -> None:
        """Fill `padded` with the padded input, `outputs`, and `places` with the window position of each output."""
        self._library.conv_forward(
            self._block, strided(x, self._inputs), self._get_strides(x), pointer(weight, self._filters),
            pointer(bias, self._filters[:1]), pointer(padded, self.padded), scratch(self._forward_floats),
            pointer(outputs, self.outputs), pointer(places, self.outputs, torch.int32),
        )  # fmt: skip

    def backward(
        self, g: Tensor, places: Tensor, padded: Tensor, weight: Tensor, weight_grad: Tensor, bias_grad: Tensor,
        input_grad: Tensor | None,
    ) -> None:  # fmt: skip
        """Fill the last three from the outputs' gradient `g` and the results of the forward pass."""
        self._library.conv_backward(
            self._block, strided(g, self._shown), self._get_strides(g), pointer(places, self.outputs, torch.int32),
            pointer(padded, self.padded), pointer(weight, self._filters), scratch(self._backward_floats),
            pointer(weight_grad, self._filters), pointer(bias_grad, self._filters[:1]),
            None if input_grad is None else pointer(input_grad, self.padded),
        )  # fmt: skip

    def _get_strides(self, tensor: Tensor) -> Any:
        strides = tensor.stride()
        cached = self._strides.get(strides)
        if cached is None:
            cached = self._strides[strides] = make_strides(strides)
        return cached

    def crop(self, padded: Tensor) -> Tensor:
        """Return a view of a padded batch without its padding, as (batch, channels, ...)."""
        b = self._block
        line = b.padded_width * b.channels
        steps = (line, b.channels)[4 - len(self._inputs) :]
        start = b.top * line + b.left * b.channels
        return padded.as_strided(self._inputs, (b.padded_height * line, 1, *steps), start)


FourStrides = ctypes.c_int64 * 4


def make_strides(strides: Sequence[int]) -> Any:
    """Return the strides of image, channel, row and column as a C array."""
    return FourStrides(*strides[:2], *(0, *strides[2:])[-2:])


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        outputs, places = torch.empty(call.outputs), torch.empty(call.outputs, dtype=torch.int32)
        padded, weight = torch.empty(call.padded), weight.contiguous()
        shift = weight.new_zeros(len(weight)) if bias is None else bias.contiguous()
        call.forward(x, weight, shift, padded, outputs, places)
        ctx.save_for_backward(places, padded, weight)
        ctx.call, ctx.has_bias = call, bias is not None
        return outputs.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        call: Call = ctx.call
        places, padded, weight = ctx.saved_tensors
        weight_grad, bias_grad = torch.empty_like(weight), weight.new_empty(len(weight))
        input_grad = torch.empty_like(padded) if ctx.needs_input_grad[0] else None
        call.backward(gradient, places, padded, weight, weight_grad, bias_grad, input_grad)
        cropped = None if input_grad is None else call.crop(input_grad)
        return cropped, weight_grad, bias_grad if ctx.has_bias else None, None


@cache
def load_kernel() -> Any:
    """Load the kernel and declare the types of its functions; None if there is no kernel."""
    library = kernels.load("conv")
    if library is None:
        return None
    block, pointer = ctypes.POINTER(Block), ctypes.c_void_p
    for name in ("conv_padded_floats", "conv_forward_floats", "conv_backward_floats"):
        getattr(library, name).restype = ctypes.c_int64
        getattr(library, name).argtypes = [block]
    library.conv_forward.restype = library.conv_backward.restype = None
    library.conv_forward.argtypes = [block, pointer, FourStrides, *[pointer] * 6]
    library.conv_backward.argtypes = [block, pointer, FourStrides, *[pointer] * 7]
    return library


BY_COVARIANCE = 1
"""The kernel's constant for the backward pass without a gradient of the input."""


class ConvNormBlock(nn.Module):
    """A `Conv2d` of stride 1, a `BatchNorm2d` that always uses the statistics of the batch, pooling and ReLU.

    The bias of the convolution has no effect, because the norm removes it, and no gradient. Torch's gradient of it
    consists of rounding errors.

    Args:
        layer: The convolution, whose parameters are shared.
        norm: The batch norm, whose parameters are shared.
        shape: Padding, pooling and ReLU.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d, norm: nn.BatchNorm2d, shape: Shape) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.scale, self.shift, self.eps = norm.weight, norm.bias, norm.eps
        self.shape = shape
        self._calls: dict[torch.Size, NormCall] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        call = self.call_for(x.shape)
        if not torch.is_grad_enabled():
            buffers = NormBuffers(call, False)
            call.norm_forward(x, self.weight, self.scale, self.shift, buffers)
            return buffers.shown
        outputs: Tensor = _Norm.apply(x, self.weight, self.scale, self.shift, call)  # type: ignore[no-untyped-call]
        return outputs

    def call_for(self, shape: torch.Size) -> NormCall:
        """Return the kernel call for inputs of this shape."""
        cached = self._calls.get(shape)
        if cached is None:
            cached = self._calls[shape] = NormCall(make_block(shape, self.weight.shape, self.shape), shape, self)
        return cached


class NormCall(Call):
    """The kernel with a batch norm for one shape of input.

    Args:
        block: The sizes.
        inputs: Shape of the inputs.
        layer: The layer.

    Raises:
        ValueError: If the kernel has no batch norm for this shape.
    """

    def __init__(self, block: Block, inputs: torch.Size, layer: ConvNormBlock) -> None:
        super().__init__(block, tuple(inputs), tuple(layer.weight.shape))
        self._norms, self._eps = load_norm_kernel(), layer.eps
        self.way = int(self._norms.conv_norm_way(block))
        if not self.way:
            raise ValueError(f"the kernel has no batch norm for an input of shape {tuple(inputs)}")
        if block.images * block.used_height * block.used_width < 2:
            raise ValueError("a batch norm needs more than one value of a channel")
        self.kept = (int(self._norms.conv_norm_kept_floats(block)),)
        self._floats = int(self._norms.conv_norm_forward_floats(block))
        self._floats_back = int(self._norms.conv_norm_backward_floats(block))

    def norm_forward(self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, kept: NormBuffers) -> None:
        """Fill the buffers `kept`."""
        filters = self._filters[:1]
        self._norms.conv_norm_forward(
            self._block, strided(x, self._inputs), self._get_strides(x), pointer(weight, self._filters),
            pointer(scale, filters), pointer(shift, filters), self._eps, pointer(kept.padded, self.padded),
            scratch(self._floats), self._pointers(kept), pointer(kept.outputs, self.outputs),
            pointer(kept.places, self.outputs, torch.int32),
        )  # fmt: skip

    def norm_backward(
        self, g: Tensor, weight: Tensor, scale: Tensor, kept: NormBuffers, weight_grad: Tensor, scale_grad: Tensor,
        shift_grad: Tensor, input_grad: Tensor | None,
    ) -> None:  # fmt: skip
        """Fill the last four from the outputs' gradient `g` and the buffers of the forward pass."""
        if input_grad is not None and self.way == BY_COVARIANCE:
            raise ValueError("the kernel has no gradient of the input for windows this small")
        filters = self._filters[:1]
        self._norms.conv_norm_backward(
            self._block, strided(g, self._shown), self._get_strides(g),
            pointer(kept.places, self.outputs, torch.int32), pointer(kept.padded, self.padded),
            pointer(weight, self._filters), pointer(scale, filters), self._pointers(kept), scratch(self._floats_back),
            pointer(weight_grad, self._filters), pointer(scale_grad, filters), pointer(shift_grad, filters),
            None if input_grad is None else pointer(input_grad, self.padded),
        )  # fmt: skip

    def _pointers(self, kept: NormBuffers) -> _Pointers:
        filters = self._filters[:1]
        return _Pointers(
            pointer(kept.mean, filters), pointer(kept.rest, filters), pointer(kept.pooled, self.outputs),
            None if kept.all is None else pointer(kept.all, self.kept),
        )  # fmt: skip


class NormBuffers:
    """The memory of one forward pass: its outputs, and what the backward pass needs.

    Args:
        call: The kernel call.
        learns: Whether a backward pass follows.
    """

    def __init__(self, call: NormCall, learns: bool = True) -> None:
        self.outputs, self.pooled = torch.empty(call.outputs), torch.empty(call.outputs)
        self.places, self.padded = torch.empty(call.outputs, dtype=torch.int32), torch.empty(call.padded)
        self.mean, self.rest = torch.empty(call.outputs[-1]), torch.empty(call.outputs[-1])
        self.all = torch.empty(call.kept) if learns else None
        self.shown = self.outputs.movedim(-1, 1)


class _Pointers(ctypes.Structure):
    """The kernel's state between its passes, as a C struct."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("mean", "rest", "pooled", "all"))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, call: NormCall) -> Tensor:
        kept = ctx.kept = NormBuffers(call)
        call.norm_forward(x, weight, scale, shift, kept)
        ctx.save_for_backward(weight, scale)
        ctx.call = call
        return kept.shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor, None]:
        call: NormCall = ctx.call
        weight, scale = ctx.saved_tensors
        grads = torch.empty_like(weight), torch.empty_like(scale), torch.empty_like(scale)
        input_grad = torch.empty_like(ctx.kept.padded) if ctx.needs_input_grad[0] else None
        call.norm_backward(gradient, weight, scale, ctx.kept, *grads, input_grad)
        return None if input_grad is None else call.crop(input_grad), *grads, None


@cache
def load_norm_kernel() -> Any:
    """Load the kernel and declare the types of its functions for batch norms; None if there is no kernel."""
    library = load_kernel()
    if library is None:
        return None
    block, address = ctypes.POINTER(Block), ctypes.c_void_p
    for name in ("way", "kept_floats", "forward_floats", "backward_floats"):
        function = getattr(library, f"conv_norm_{name}")
        function.restype, function.argtypes = ctypes.c_int64, [block]
    kept = ctypes.POINTER(_Pointers)
    library.conv_norm_forward.restype = library.conv_norm_backward.restype = None
    library.conv_norm_forward.argtypes = [
        block, address, FourStrides, *[address] * 3, ctypes.c_float, *[address] * 2, kept, *[address] * 2,
    ]  # fmt: skip
    library.conv_norm_backward.argtypes = [block, address, FourStrides, *[address] * 4, kept, *[address] * 5]
    return library
