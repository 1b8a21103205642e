"""Convolution, batch norm by the batch's statistics, max-pooling and ReLU as one layer, by the kernel in `conv.c`."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedbalancer.training.fast import conv
from fedbalancer.training.fast.conv import Block, Call, FourStrides, Shape
from fedbalancer.training.fast.pointers import pointer, scratch, strided

BY_COVARIANCE = 1
"""What the kernel calls the way back that gives no gradient of the input."""


class ConvNormBlock(nn.Module):
    """A `Conv2d` of stride 1, a `BatchNorm2d` that always takes the statistics of the batch, and what follows; its
    parameters are those of the given layers.

    The bias of the convolution is without effect, as the norm takes it away, and has no gradient; torch gives it one of
    rounding errors.
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
        call = self.call(x.shape)
        if not torch.is_grad_enabled():
            kept = Kept(call, False)
            call.normed(x, self.weight, self.scale, self.shift, kept)
            return kept.shown
        outputs: Tensor = _Norm.apply(x, self.weight, self.scale, self.shift, call)  # type: ignore[no-untyped-call]
        return outputs

    def call(self, shape: torch.Size) -> NormCall:
        """What the kernel is told for inputs of this shape."""
        known = self._calls.get(shape)
        if known is None:
            known = self._calls[shape] = NormCall(conv.block_of(shape, self.weight.shape, self.shape), shape, self)
        return known


class NormCall(Call):
    """The kernel for one shape of input."""

    def __init__(self, block: Block, inputs: torch.Size, layer: ConvNormBlock) -> None:
        super().__init__(block, tuple(inputs), tuple(layer.weight.shape))
        self._norms, self._eps = loaded(), layer.eps
        self.way = int(self._norms.conv_norm_way(block))
        if not self.way:
            raise ValueError(f"the kernel has no batch norm for an input of shape {tuple(inputs)}")
        if block.images * block.used_height * block.used_width < 2:
            raise ValueError("a batch norm needs more than one value of a channel")
        self.kept = (int(self._norms.conv_norm_kept_floats(block)),)
        self._floats = int(self._norms.conv_norm_forward_floats(block))
        self._floats_back = int(self._norms.conv_norm_backward_floats(block))

    def normed(self, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, kept: Kept) -> None:
        """Fills all that is kept."""
        filters = self._filters[:1]
        self._norms.conv_norm_forward(
            self._block, strided(x, self._inputs), self._four_strides(x), pointer(weight, self._filters),
            pointer(scale, filters), pointer(shift, filters), self._eps, pointer(kept.padded, self.padded),
            scratch(self._floats), self._pointers(kept), pointer(kept.outputs, self.outputs),
            pointer(kept.places, self.outputs, torch.int32),
        )  # fmt: skip

    def back(
        self, g: Tensor, weight: Tensor, scale: Tensor, kept: Kept, of_weight: Tensor, of_scale: Tensor,
        of_shift: Tensor, of_input: Tensor | None,
    ) -> None:  # fmt: skip
        """Fills the last four from the outputs' gradient g and what the forward pass left."""
        if of_input is not None and self.way == BY_COVARIANCE:
            raise ValueError("the kernel has no gradient of the input for windows of so few values")
        filters = self._filters[:1]
        self._norms.conv_norm_backward(
            self._block, strided(g, self._shown), self._four_strides(g),
            pointer(kept.places, self.outputs, torch.int32), pointer(kept.padded, self.padded),
            pointer(weight, self._filters), pointer(scale, filters), self._pointers(kept), scratch(self._floats_back),
            pointer(of_weight, self._filters), pointer(of_scale, filters), pointer(of_shift, filters),
            None if of_input is None else pointer(of_input, self.padded),
        )  # fmt: skip

    def _pointers(self, kept: Kept) -> _Pointers:
        filters = self._filters[:1]
        return _Pointers(
            pointer(kept.mean, filters), pointer(kept.rest, filters), pointer(kept.pooled, self.outputs),
            None if kept.all is None else pointer(kept.all, self.kept),
        )  # fmt: skip


class Kept:
    """The memory of one forward pass: outputs, and what a backward pass needs."""

    def __init__(self, call: NormCall, learns: bool = True) -> None:
        self.outputs, self.pooled = torch.empty(call.outputs), torch.empty(call.outputs)
        self.places, self.padded = torch.empty(call.outputs, dtype=torch.int32), torch.empty(call.padded)
        self.mean, self.rest = torch.empty(call.outputs[-1]), torch.empty(call.outputs[-1])
        self.all = torch.empty(call.kept) if learns else None
        self.shown = self.outputs.movedim(-1, 1)


class _Pointers(ctypes.Structure):
    """What the kernel keeps between its passes."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("mean", "rest", "pooled", "all"))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, call: NormCall) -> Tensor:
        kept = ctx.kept = Kept(call)
        call.normed(x, weight, scale, shift, kept)
        ctx.save_for_backward(weight, scale)
        ctx.call = call
        return kept.shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor, None]:
        call: NormCall = ctx.call
        weight, scale = ctx.saved_tensors
        made = torch.empty_like(weight), torch.empty_like(scale), torch.empty_like(scale)
        of_input = torch.empty_like(ctx.kept.padded) if ctx.needs_input_grad[0] else None
        call.back(gradient, weight, scale, ctx.kept, *made, of_input)
        return None if of_input is None else call.inside(of_input), *made, None


@cache
def loaded() -> Any:
    """The compiled kernel with the types of its functions for batch norms; None if there is none."""
    library = conv.loaded()
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
