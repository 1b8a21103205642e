"""A small row of layers whose whole step of SGD, with the cross-entropy, is one call of the kernel in `row.c`.

Only rows of convolutions, then dense layers with or without a ReLU after them, all of them small: a large dense layer
is better off with its own step (`dense.py`), and there the calls cost nothing beside the work.
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

from fedbalancer.training.fast import conv, kernels, products
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
            "of_weight", "of_bias", "padded", "outputs", "of_padded", "places", "g",
        )),
    )  # fmt: skip


class _Dense(ctypes.Structure):
    _fields_ = (
        ("in", _I), ("out", _I), ("relu", _I), ("weight", _Parameter), ("bias", _Parameter), ("outputs", _P), ("g", _P),
    )  # fmt: skip


class _Row(ctypes.Structure):
    _fields_ = (
        ("kernels", _P), ("convs", _I), ("denses", _I), ("batch", _I), ("conv", _P), ("dense", _P), ("channels", _I),
        ("positions", _I), ("flat", _P), ("of_flat", _P), ("scratch", _P),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Library:
    kernels: _Kernels
    step: Any
    conv: Any
    dense: Any


class Row:
    """The layers of a row. `begin` starts a training from the parameters as they are; a `step` writes them."""

    def __init__(
        self, convs: Sequence[ConvBlock], denses: Sequence[tuple[nn.Linear, bool]], sample: torch.Size
    ) -> None:
        library = loaded()
        if library is None:
            raise ValueError("there is no kernel")
        self._library, self._convs, self._denses, self._sides = library, convs, denses, tuple(sample[1:])
        owners: list[ConvBlock | nn.Linear] = [*convs, *(dense for dense, _ in denses)]
        self._parameters: list[Tensor] = [
            tensor for layer in owners for tensor in (layer.weight, layer.bias) if tensor is not None
        ]
        self._start = {id(tensor): torch.empty_like(tensor.detach()) for tensor in self._parameters}
        self._memories: dict[tuple[int, bool], _Memory] = {}

    @property
    def classes(self) -> int:
        """How many numbers the last layer gives."""
        return len(self._denses[-1][0].weight)

    def begin(self, rate: float, mu: float) -> None:
        """Steps are w <- w - rate * (gradient + mu * (w - w_0)), w_0 the parameters as they are now."""
        self._rate, self._share = rate, rate * mu
        if mu:
            for tensor in self._parameters:
                self._start[id(tensor)].copy_(tensor.detach())
        for memory in self._memories.values():
            memory.checked = False

    def step(self, features: Tensor, labels: Tensor) -> Tensor | None:
        """The losses from before the step; None, with nothing done, for a batch that is not as those of the sample or
        whose labels are not classes: for others to complain about."""
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
                memory = self._memories[key] = self._made(rows, where)
            memory.checked = True
        return memory

    def _made(self, rows: int, where: tuple[int, ...]) -> _Memory:
        """Memory for batches of so many rows, and what the kernel is told of it."""
        made, library = _Memory(where), self._library
        convs = (_Conv * len(self._convs))()
        denses = (_Dense * len(self._denses))()
        row = _Row(
            kernels=ctypes.addressof(library.kernels), convs=len(convs), denses=len(denses), batch=rows,
            conv=ctypes.addressof(convs), dense=ctypes.addressof(denses),
        )  # fmt: skip
        made.row, made.kept = row, [convs, denses, library.kernels]
        most = self._add_convolutions(made, convs, rows) if convs else 0
        for number, (layer, relu) in enumerate(self._denses):
            out, width = layer.weight.shape
            denses[number] = _Dense(
                width, out, relu, self._parameter(layer.weight), self._parameter(layer.bias),
                made.floats(rows, out), made.floats(rows, out),
            )  # fmt: skip
            most = max(most, int(library.dense.dense_floats(rows, width)), out)
        row.scratch = made.floats(most)
        return made

    def _add_convolutions(self, made: _Memory, convs: Any, rows: int) -> int:
        """Fills what the kernel is told of them; how many floats of scratch they want."""
        library, shape, most = self._library.conv, torch.Size((rows, *self._sides)), 0
        strides: tuple[int, ...] = torch.empty(shape, device="meta").stride()
        for number, layer in enumerate(self._convs):
            call = layer.call(shape)
            block, c = conv.block_of(shape, layer.weight.shape, layer.shape), convs[number]
            made.kept.append(block)
            c.block, c.in_strides = ctypes.addressof(block), conv.four_strides(strides)
            c.weight, c.bias = self._parameter(layer.weight), self._parameter(layer.bias)
            if layer.bias is None:
                c.bias.now = made.floats(block.filters, zero=True)
            c.of_weight, c.of_bias = made.floats(*layer.weight.shape), made.floats(block.filters)
            c.padded, c.outputs = made.floats(*call.padded), made.floats(*call.outputs)
            c.places = made.floats(*call.outputs)  # 32 bits, like floats
            if number:  # its input's gradient is the gradient of the outputs before it
                padded = made.tensor(*call.padded)
                c.of_padded, inside = pointer(padded, call.padded), call.inside(padded)
                convs[number - 1].g = strided(inside, tuple(inside.shape))
                convs[number - 1].g_strides = conv.four_strides(inside.stride())
            most = max(most, library.conv_forward_floats(block), library.conv_backward_floats(block))
            shown = torch.empty(call.outputs, device="meta").movedim(-1, 1)
            shape, strides = shown.shape, shown.stride()
        made.row.channels, made.row.positions = shape[1], math.prod(shape[2:])
        made.row.flat, made.row.of_flat = made.floats(*shape), made.floats(*shape)
        convs[-1].g = made.row.of_flat
        convs[-1].g_strides = conv.four_strides(torch.empty(shape, device="meta").stride())
        return int(most)

    def _parameter(self, tensor: Tensor | None) -> _Parameter:
        if tensor is None:
            return _Parameter()
        shape = tuple(tensor.shape)
        start = pointer(self._start[id(tensor)], shape) if self._share else None
        return _Parameter(pointer(tensor.detach(), shape), start, tensor.numel())


@dataclass(eq=False)
class _Memory:
    """What a row works in for batches of one size, while its parameters stay where they are."""

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


def row_of(layers: Sequence[nn.Module], sample: Tensor) -> Row | None:
    """These layers, which are called one after the other, as a row; None if they are anything else, or too large."""
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
    usual = sample.dtype is torch.float32 and all(
        tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
        for layer in (*convs, *rest)
        for tensor in layer.parameters()
    )
    if not usual or not denses or denses[-1][1] or loaded() is None:
        return None
    return Row(convs, denses, sample.shape) if _fits(convs, denses, sample.shape) else None


def _fits(convs: Sequence[ConvBlock], denses: Sequence[tuple[nn.Linear, bool]], shape: torch.Size) -> bool:
    """Whether every layer takes what the one before it gives."""
    for layer in convs:
        made = layer.call(shape).outputs
        shape = torch.Size((made[0], made[-1], *made[1:-1]))
    width = math.prod(shape[1:])
    for dense, _ in denses:
        if dense.weight.shape[1] != width:
            return False
        width = len(dense.weight)
    return True


@cache
def loaded() -> _Library | None:
    """The kernel and those that it calls; None if one of them is missing."""
    library, convs, dense = kernels.load("row"), conv.loaded(), products.loaded()
    if library is None or convs is None or dense is None:
        return None
    library.row_step.restype = ctypes.c_int
    library.row_step.argtypes = [ctypes.POINTER(_Row), *[_P] * 3, ctypes.c_float, ctypes.c_float]
    addresses = (convs.conv_forward, convs.conv_backward, dense.dense_dots, dense.dense_step)
    return _Library(_Kernels(*(ctypes.cast(function, _P) for function in addresses)), library.row_step, convs, dense)
