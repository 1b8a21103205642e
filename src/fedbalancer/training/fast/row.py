"""A small sequence of layers whose whole SGD step, with the cross-entropy, is one call of the kernel in `row.c`.

A row consists of convolutions, then dense layers with or without a ReLU, all of them small. A large dense layer is
faster with its own step (`dense.py`), because there the calls cost little compared with the work.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedbalancer.training.fast import conv, dense, kernels
from fedbalancer.training.fast.conv import ConvBlock
from fedbalancer.training.fast.pointers import pointer, strided

_P, _I = ctypes.c_void_p, ctypes.c_ssize_t


class _Kernels(ctypes.Structure):
    _fields_ = tuple((name, _P) for name in ("conv_forward", "conv_backward", "dense_dots", "dense_step"))


class _Parameter(ctypes.Structure):
    _fields_ = (("now", _P), ("start", _P), ("count", _I))


class _Conv(ctypes.Structure):
    _fields_ = (
        ("block", _P), ("in_strides", conv.FourStrides), ("g_strides", conv.FourStrides), ("weight", _Parameter),
        ("bias", _Parameter), *((name, _P) for name in (
            "weight_grad", "bias_grad", "padded", "outputs", "padded_grad", "places", "g",
        )),
    )  # fmt: skip


class _Dense(ctypes.Structure):
    _fields_ = (
        ("in", _I), ("out", _I), ("relu", _I), ("weight", _Parameter), ("bias", _Parameter), ("outputs", _P), ("g", _P),
    )  # fmt: skip


class _Row(ctypes.Structure):
    _fields_ = (
        ("kernels", _P), ("convs", _I), ("denses", _I), ("batch", _I), ("conv", _P), ("dense", _P), ("channels", _I),
        ("positions", _I), ("flat", _P), ("flat_grad", _P), ("scratch", _P),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Library:
    kernels: _Kernels
    step: Any
    conv: Any
    dense: Any


class Row:
    """A sequence of small layers; every `step` writes their parameters.

    Args:
        convs: The convolutions.
        denses: The dense layers, each with whether a ReLU follows.
        sample: Shape of a batch.
    """

    def __init__(
        self, convs: Sequence[ConvBlock], denses: Sequence[tuple[nn.Linear, bool]], sample: torch.Size
    ) -> None:
        library = load_kernel()
        if library is None:
            raise ValueError("there is no kernel")
        self._library, self._convs, self._denses, self._sides = library, convs, denses, tuple(sample[1:])
        owners: list[ConvBlock | nn.Linear] = [*convs, *(linear for linear, _ in denses)]
        self._parameters: list[Tensor] = [
            tensor for layer in owners for tensor in (layer.weight, layer.bias) if tensor is not None
        ]
        self._start = {id(tensor): torch.empty_like(tensor.detach()) for tensor in self._parameters}
        self._memories: dict[tuple[int, bool], _Memory] = {}

    @property
    def classes(self) -> int:
        """Number of outputs of the last layer."""
        return len(self._denses[-1][0].weight)

    def begin(self, rate: float, mu: float) -> None:
        """Begin a training with steps w <- w - rate * (gradient + mu * (w - w_0)).

        Args:
            rate: Learning rate.
            mu: Weight of the proximal term; w_0 are the current parameters.
        """
        self._rate, self._share = rate, rate * mu
        if mu:
            for tensor in self._parameters:
                self._start[id(tensor)].copy_(tensor.detach())
        for memory in self._memories.values():
            memory.checked = False

    def step(self, features: Tensor, labels: Tensor) -> Tensor | None:
        """Train one batch.

        Returns:
            The losses before the step; None, with nothing done, if the batch is not like the sample or its labels are
            not classes, so that the caller's other path reports the error.
        """
        rows = len(features)
        if tuple(features.shape[1:]) != self._sides or not rows or labels.shape != (rows,):
            return None
        if features.dtype is not torch.float32 or labels.dtype is not torch.int64:
            return None
        memory = self._memory(rows)
        losses = torch.empty(rows)
        failed = self._library.step(
            memory.row, pointer(features.contiguous(), (rows, *self._sides)),
            pointer(labels.contiguous(), (rows,), torch.int64), pointer(losses, (rows,)), self._rate, self._share,
        )  # fmt: skip
        return None if failed else losses

    def _memory(self, rows: int) -> _Memory:
        key = rows, bool(self._share)
        memory = self._memories.get(key)
        if memory is None or not memory.checked:
            where = tuple(pointer(tensor.detach(), tuple(tensor.shape)) for tensor in self._parameters)
            if memory is None or memory.where != where:
                memory = self._memories[key] = self._make_memory(rows, where)
            memory.checked = True
        return memory

    def _make_memory(self, rows: int, where: tuple[int, ...]) -> _Memory:
        """Make the memory and the C structs for batches of `rows` rows."""
        memory, library = _Memory(where), self._library
        convs = (_Conv * len(self._convs))()
        denses = (_Dense * len(self._denses))()
        row = _Row(
            kernels=ctypes.addressof(library.kernels), convs=len(convs), denses=len(denses), batch=rows,
            conv=ctypes.addressof(convs), dense=ctypes.addressof(denses),
        )  # fmt: skip
        memory.row, memory.kept = row, [convs, denses, library.kernels]
        most = self._add_convolutions(memory, convs, rows) if convs else 0
        for number, (layer, relu) in enumerate(self._denses):
            out, width = layer.weight.shape
            denses[number] = _Dense(
                width, out, relu, self._parameter(layer.weight), self._parameter(layer.bias),
                memory.floats(rows, out), memory.floats(rows, out),
            )  # fmt: skip
            most = max(most, int(library.dense.dense_floats(rows, width)), out)
        row.scratch = memory.floats(most)
        return memory

    def _add_convolutions(self, memory: _Memory, convs: Any, rows: int) -> int:
        """Fill the C structs of the convolutions; return the floats of scratch memory that they need."""
        library, shape, most = self._library.conv, torch.Size((rows, *self._sides)), 0
        strides: tuple[int, ...] = torch.empty(shape, device="meta").stride()
        for number, layer in enumerate(self._convs):
            call = layer.call_for(shape)
            block, c = conv.make_block(shape, layer.weight.shape, layer.shape), convs[number]
            memory.kept.append(block)
            c.block, c.in_strides = ctypes.addressof(block), conv.make_strides(strides)
            c.weight, c.bias = self._parameter(layer.weight), self._parameter(layer.bias)
            if layer.bias is None:
                c.bias.now = memory.floats(block.filters, zero=True)
            c.weight_grad, c.bias_grad = memory.floats(*layer.weight.shape), memory.floats(block.filters)
            c.padded, c.outputs = memory.floats(*call.padded), memory.floats(*call.outputs)
            c.places = memory.floats(*call.outputs)  # 32 bits, like floats
            if number:  # the gradient of its input is that of the previous outputs
                padded = memory.tensor(*call.padded)
                c.padded_grad, inside = pointer(padded, call.padded), call.crop(padded)
                convs[number - 1].g = strided(inside, tuple(inside.shape))
                convs[number - 1].g_strides = conv.make_strides(inside.stride())
            most = max(most, library.conv_forward_floats(block), library.conv_backward_floats(block))
            shown = torch.empty(call.outputs, device="meta").movedim(-1, 1)
            shape, strides = shown.shape, shown.stride()
        memory.row.channels, memory.row.positions = shape[1], math.prod(shape[2:])
        memory.row.flat, memory.row.flat_grad = memory.floats(*shape), memory.floats(*shape)
        convs[-1].g = memory.row.flat_grad
        convs[-1].g_strides = conv.make_strides(torch.empty(shape, device="meta").stride())
        return int(most)

    def _parameter(self, tensor: Tensor | None) -> _Parameter:
        if tensor is None:
            return _Parameter()
        shape = tuple(tensor.shape)
        start = pointer(self._start[id(tensor)], shape) if self._share else None
        return _Parameter(pointer(tensor.detach(), shape), start, tensor.numel())


@dataclass(eq=False)
class _Memory:
    """The memory of a row for batches of one size, valid while its parameters are not moved."""

    where: tuple[int, ...]
    row: _Row = field(default_factory=_Row)
    kept: list[Any] = field(default_factory=list)
    checked: bool = False

    def tensor(self, *shape: int, zero: bool = False) -> Tensor:
        tensor = torch.zeros(shape) if zero else torch.empty(shape)
        self.kept.append(tensor)
        return tensor

    def floats(self, *shape: int, zero: bool = False) -> int:
        return pointer(self.tensor(*shape, zero=zero), shape)


def make_row(layers: Sequence[nn.Module], sample: Tensor) -> Row | None:
    """Make a row of layers that are called one after the other.

    Args:
        layers: The layers.
        sample: A batch.

    Returns:
        The row; None if the layers are not supported or too large.
    """
    rest, convs = list(layers), list[ConvBlock]()
    while rest and isinstance(rest[0], ConvBlock):
        convs.append(rest[0])
        del rest[0]
    if rest and isinstance(rest[0], nn.Flatten) and (rest[0].start_dim, rest[0].end_dim) == (1, -1):
        rest.pop(0)
    elif convs or sample.ndim != 2:
        return None
    denses: list[tuple[nn.Linear, bool]] = []
    for layer in rest:
        if type(layer) is nn.Linear:
            denses.append((layer, False))
        elif type(layer) is nn.ReLU and denses and not denses[-1][1]:
            denses[-1] = (denses[-1][0], True)
        else:
            return None
    supported = sample.dtype is torch.float32 and all(
        tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
        for layer in (*convs, *rest)
        for tensor in layer.parameters()
    )
    if not supported or not denses or denses[-1][1] or load_kernel() is None:
        return None
    return Row(convs, denses, sample.shape) if _fits(convs, denses, sample.shape) else None


def _fits(convs: Sequence[ConvBlock], denses: Sequence[tuple[nn.Linear, bool]], shape: torch.Size) -> bool:
    """Whether the shapes of consecutive layers fit together."""
    for layer in convs:
        outputs = layer.call_for(shape).outputs
        shape = torch.Size((outputs[0], outputs[-1], *outputs[1:-1]))
    width = math.prod(shape[1:])
    for linear, _ in denses:
        if linear.weight.shape[1] != width:
            return False
        width = len(linear.weight)
    return True


@cache
def load_kernel() -> _Library | None:
    """Load the kernel and those that it calls; None if one of them is missing."""
    library, convs, denses = kernels.load("row"), conv.load_kernel(), dense.load_kernel()
    if library is None or convs is None or denses is None:
        return None
    library.row_step.restype = ctypes.c_int
    library.row_step.argtypes = [ctypes.POINTER(_Row), *[_P] * 3, ctypes.c_float, ctypes.c_float]
    addresses = (convs.conv_forward, convs.conv_backward, denses.dense_dots, denses.dense_step)
    return _Library(_Kernels(*(ctypes.cast(function, _P) for function in addresses)), library.row_step, convs, denses)
