"""Convolution, bias, max-pooling and ReLU as one layer, by the kernel in `conv.c`."""

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

LARGEST = 2**24
"""Numbers in an image, in its outputs or in all filters, at most: the kernel keeps places in them in 32 bits."""

_FIELDS = (
    "images", "channels", "height", "width", "filters", "rows", "columns", "top", "left", "padded_height",
    "padded_width", "pool_rows", "pool_columns", "out_height", "out_width", "used_height", "used_width", "relu",
)  # fmt: skip


class Block(ctypes.Structure):
    """The numbers of one call, as the kernel knows them."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS)


@dataclass(frozen=True)
class Shape:
    """What a block does beside its filters. Sides are (top, bottom, left, right); one dimension is a height of 1."""

    padding: tuple[int, int, int, int]
    pool: tuple[int, int] = (1, 1)
    ceil: bool = False
    relu: bool = True

    def outputs(self, sides: tuple[int, int], window: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width before the pooling, as far as windows reach, and after it."""
        top, bottom, left, right = self.padding
        full = (sides[0] + top + bottom - window[0] + 1, sides[1] + left + right - window[1] + 1)
        pooled = [-(-side // pool) if self.ceil else side // pool for side, pool in zip(full, self.pool, strict=True)]
        used = [min(side, count * pool) for side, count, pool in zip(full, pooled, self.pool, strict=True)]
        return (used[0], used[1]), (pooled[0], pooled[1])


class ConvBlock(nn.Module):
    """A `Conv1d` or `Conv2d` of stride 1 with what follows it; its parameters are those of the given layer.

    Takes and gives tensors of torch's usual shape (batch, channels, ...). In memory the channels of a position of the
    result lie side by side.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, shape: Shape) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.shape = shape
        self._calls: dict[torch.Size, Call] = {}

    def forward(self, x: Tensor) -> Tensor:
        call = self._calls.get(x.shape)
        if call is None:
            call = self._calls[x.shape] = self.call(x.shape)
        outputs: Tensor = _Convolution.apply(x, self.weight, self.bias, call)  # type: ignore[no-untyped-call]
        return outputs

    def call(self, shape: torch.Size) -> Call:
        """What the kernel is told for inputs of this shape."""
        return Call(block_of(shape, self.weight.shape, self.shape), tuple(shape), tuple(self.weight.shape))


def block_of(inputs: torch.Size, weight: torch.Size, shape: Shape) -> Block:
    """The numbers of a call for inputs and filters of these shapes."""
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
    """The kernel for one shape of input: how much memory it wants, and its calls with tensors that are checked."""

    def __init__(self, block: Block, inputs: tuple[int, ...], filters: tuple[int, ...]) -> None:
        sides = (block.out_height, block.out_width)[4 - len(inputs) :]
        self.outputs = (block.images, *sides, block.filters)
        largest = max(block.padded_height * block.padded_width * block.channels, math.prod(filters))
        if max(largest, math.prod(self.outputs[1:])) > LARGEST:
            raise ValueError(f"an input of shape {inputs} for filters of shape {filters} is too large for the kernel")
        self._library, self._block, self._inputs, self._filters = loaded(), block, inputs, filters
        self._shown = (block.images, block.filters, *sides)
        self._strides: dict[tuple[int, ...], Any] = {}
        self.padded = (int(self._library.conv_padded_floats(block)),)
        self._forward_floats = int(self._library.conv_forward_floats(block))
        self._backward_floats = int(self._library.conv_backward_floats(block))

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, padded: Tensor, outputs: Tensor, places: Tensor) -> None:
        """Fills the last three: the padded input, and the outputs and which place of its window each comes from."""
        self._library.conv_forward(
            self._block, strided(x, self._inputs), self._four_strides(x), pointer(weight, self._filters),
            pointer(bias, self._filters[:1]), pointer(padded, self.padded), scratch(self._forward_floats),
            pointer(outputs, self.outputs), pointer(places, self.outputs, torch.int32),
        )  # fmt: skip

    def backward(
        self, g: Tensor, places: Tensor, padded: Tensor, weight: Tensor, of_weight: Tensor, of_bias: Tensor,
        of_input: Tensor | None,
    ) -> None:  # fmt: skip
        """Fills the last three from the outputs' gradient g and what the forward pass left."""
        self._library.conv_backward(
            self._block, strided(g, self._shown), self._four_strides(g), pointer(places, self.outputs, torch.int32),
            pointer(padded, self.padded), pointer(weight, self._filters), scratch(self._backward_floats),
            pointer(of_weight, self._filters), pointer(of_bias, self._filters[:1]),
            None if of_input is None else pointer(of_input, self.padded),
        )  # fmt: skip

    def _four_strides(self, tensor: Tensor) -> Any:
        strides = tensor.stride()
        known = self._strides.get(strides)
        if known is None:
            known = self._strides[strides] = four_strides(strides)
        return known

    def inside(self, padded: Tensor) -> Tensor:
        """The part of a padded batch that is not padding, as (batch, channels, ...)."""
        b = self._block
        line = b.padded_width * b.channels
        steps = (line, b.channels)[4 - len(self._inputs) :]
        start = b.top * line + b.left * b.channels
        return padded.as_strided(self._inputs, (b.padded_height * line, 1, *steps), start)


FourStrides = ctypes.c_int64 * 4


def four_strides(strides: Sequence[int]) -> Any:
    """Of image, channel, row and column, as the kernel knows them."""
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
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        of_input = torch.empty_like(padded) if ctx.needs_input_grad[0] else None
        call.backward(gradient, places, padded, weight, of_weight, of_bias, of_input)
        return None if of_input is None else call.inside(of_input), of_weight, of_bias if ctx.has_bias else None, None


@cache
def loaded() -> Any:
    """The compiled kernel with the types of its functions; None if there is none."""
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
