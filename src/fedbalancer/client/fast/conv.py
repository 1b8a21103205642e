"""Convolution, bias, max-pooling and ReLU as one layer, by the kernel in `conv.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedbalancer.client.fast import kernels

_FIELDS = (
    "images", "channels", "height", "width", "filters", "rows", "columns", "top", "left", "padded_height",
    "padded_width", "pool_rows", "pool_columns", "out_height", "out_width", "used_height", "used_width", "relu",
)  # fmt: skip


class _Block(ctypes.Structure):
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

    Takes and gives tensors of torch's usual shape (batch, channels, ...). In memory the result has the channels of a
    position side by side, as `channels_last`.
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
        images, channels, *sides = shape
        filters, depth, *window = self.weight.shape
        if channels != depth or len(sides) != len(window):
            raise ValueError(f"an input of shape {tuple(shape)} for filters of shape {tuple(self.weight.shape)}")
        height, width = (1, *sides)[-2:]
        rows, columns = (1, *window)[-2:]
        (used_height, used_width), (out_height, out_width) = self.shape.outputs((height, width), (rows, columns))
        if out_height < 1 or out_width < 1:
            raise ValueError(f"an input of {height} x {width} is too small for the window and the pooling")
        top, bottom, left, right = self.shape.padding
        block = _Block(
            images, channels, height, width, filters, rows, columns, top, left, height + top + bottom,
            width + left + right, *self.shape.pool, out_height, out_width, used_height, used_width, self.shape.relu,
        )  # fmt: skip
        return Call(block, flat=len(sides) == 1)


class Call:
    """One size of input: the numbers for the kernel, and how much memory it wants."""

    def __init__(self, block: _Block, flat: bool) -> None:
        library = loaded()
        self.block, self.flat = block, flat
        self._strides: dict[tuple[int, ...], Any] = {}
        self.padded, self.forward, self.backward = (
            int(count(block))
            for count in (library.conv_padded_floats, library.conv_forward_floats, library.conv_backward_floats)
        )
        sides = (block.out_width,) if flat else (block.out_height, block.out_width)
        self.outputs = (block.images, *sides, block.filters)

    def strides(self, tensor: Tensor) -> Any:
        """Of image, channel, row and column."""
        strides = tensor.stride()
        known = self._strides.get(strides)
        if known is None:
            four = (strides[0], strides[1], 0, strides[2]) if self.flat else strides
            known = self._strides[strides] = _FourStrides(*four)
        return known

    def inside(self, padded: Tensor) -> Tensor:
        """The part of a padded batch that is not padding, as (batch, channels, ...)."""
        b = self.block
        line = b.padded_width * b.channels
        sides, steps = ((b.width,), (b.channels,)) if self.flat else ((b.height, b.width), (line, b.channels))
        start = b.top * line + b.left * b.channels
        return padded.as_strided((b.images, b.channels, *sides), (b.padded_height * line, 1, *steps), start)


_FourStrides = ctypes.c_int64 * 4


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            raise TypeError(f"the kernel is for float32, not {x.dtype} and {weight.dtype}")
        outputs, places = torch.empty(call.outputs), torch.empty(call.outputs, dtype=torch.int32)
        padded, scratch = torch.empty(call.padded), torch.empty(call.forward)
        weight = weight.contiguous()
        shift = weight.new_zeros(len(weight)) if bias is None else bias.contiguous()
        loaded().conv_forward(
            call.block, x.data_ptr(), call.strides(x), weight.data_ptr(), shift.data_ptr(), padded.data_ptr(),
            scratch.data_ptr(), outputs.data_ptr(), places.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(places, padded, weight)
        ctx.call, ctx.has_bias = call, bias is not None
        return outputs.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        call: Call = ctx.call
        places, padded, weight = ctx.saved_tensors
        scratch = torch.empty(call.backward)
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        of_input = torch.empty_like(padded) if ctx.needs_input_grad[0] else None
        loaded().conv_backward(
            call.block, gradient.data_ptr(), call.strides(gradient), places.data_ptr(), padded.data_ptr(),
            weight.data_ptr(), scratch.data_ptr(), of_weight.data_ptr(), of_bias.data_ptr(),
            None if of_input is None else of_input.data_ptr(),
        )  # fmt: skip
        return None if of_input is None else call.inside(of_input), of_weight, of_bias if ctx.has_bias else None, None


@cache
def loaded() -> Any:
    """The compiled kernel with the types of its functions; None if there is none."""
    library = kernels.load("conv")
    if library is None:
        return None
    block, pointer = ctypes.POINTER(_Block), ctypes.c_void_p
    for name in ("conv_padded_floats", "conv_forward_floats", "conv_backward_floats"):
        getattr(library, name).restype = ctypes.c_int64
        getattr(library, name).argtypes = [block]
    library.conv_forward.restype = library.conv_backward.restype = None
    library.conv_forward.argtypes = [block, pointer, _FourStrides, *[pointer] * 6]
    library.conv_backward.argtypes = [block, pointer, _FourStrides, *[pointer] * 7]
    return library
