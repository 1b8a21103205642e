"""The three products of a dense layer, by torch or, for small batches, by the kernel in `dense.c`."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch

MOST_ROWS = 32
"""Rows of a batch up to which the kernel is faster than a library's product."""
FEWEST_WEIGHTS = 1 << 16
"""A smaller matrix is in the caches, and a call costs as much as the work."""

Pull = tuple[Tensor, float] | None
"""The matrix that a proximal step moves towards, and the share of the way that it goes; None without such a step."""


class Products:
    """By torch. A matrix w is (out, in), x and z are (rows, in), y and g are (rows, out)."""

    def dots(self, y: Tensor, x: Tensor, w: Tensor) -> None:
        """y += x w^T"""
        y.addmm_(x, w.t())

    def mix(self, z: Tensor, g: Tensor, w: Tensor) -> None:
        """z += g w"""
        z.addmm_(g, w)

    def outer(self, to: Tensor, start: Tensor | None, g: Tensor, scale: float, x: Tensor) -> None:
        """to = start + scale g^T x; start may be `to`, and is 0 if missing."""
        if start is None:
            to.zero_()
        elif start is not to:
            to.copy_(start)
        to.addmm_(g.t(), x, alpha=scale)

    def step(self, z: Tensor | None, to: Tensor, w: Tensor, g: Tensor, scale: float, x: Tensor, pull: Pull) -> None:
        """z += g w, if there is a z; then to = w + share (base - w) + scale g^T x; `to` may be w."""
        if z is not None:
            self.mix(z, g, w)
        if pull is not None:
            w = torch.lerp(w, *pull, out=to)
        self.outer(to, w, g, scale, x)


class CompiledProducts(Products):
    """By the kernel where the rows are few; all tensors must be contiguous float32 on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def dots(self, y: Tensor, x: Tensor, w: Tensor) -> None:
        if len(x) > MOST_ROWS:
            super().dots(y, x, w)
            return
        rows, (out, width) = len(x), w.shape
        self._library.dense_dots(
            pointer(y, (rows, out)), pointer(x, (rows, width)), pointer(w, (out, width)), rows, width, out,
            self._scratch(rows, width),
        )  # fmt: skip

    def mix(self, z: Tensor, g: Tensor, w: Tensor) -> None:
        if len(z) > MOST_ROWS:
            super().mix(z, g, w)
            return
        rows, (out, width) = len(z), w.shape
        self._library.dense_mix(
            pointer(z, (rows, width)), pointer(g, (rows, out)), pointer(w, (out, width)), rows, width, out,
            self._scratch(rows, width),
        )  # fmt: skip

    def outer(self, to: Tensor, start: Tensor | None, g: Tensor, scale: float, x: Tensor) -> None:
        self._step(None, to, start, g, scale, x, None)

    def step(self, z: Tensor | None, to: Tensor, w: Tensor, g: Tensor, scale: float, x: Tensor, pull: Pull) -> None:
        if len(x) > MOST_ROWS:
            super().step(z, to, w, g, scale, x, pull)
        else:
            self._step(z, to, w, g, scale, x, pull)

    def _step(
        self, z: Tensor | None, to: Tensor, w: Tensor | None, g: Tensor, scale: float, x: Tensor, pull: Pull
    ) -> None:
        rank, (out, width) = len(x), to.shape
        base, share = pull or (None, 0.0)
        of_z, of_w, of_base = (
            None if tensor is None else pointer(tensor, shape)
            for tensor, shape in ((z, (rank, width)), (w, (out, width)), (base, (out, width)))
        )
        self._library.dense_step(
            of_z, pointer(to, (out, width)), of_w, of_base, share, pointer(g, (rank, out)), scale,
            pointer(x, (rank, width)), rank, width, out, self._scratch(rank, width),
        )  # fmt: skip

    def _scratch(self, rows: int, width: int) -> int:
        return scratch(self._library.dense_floats(rows, width))


def products_for(weight: Tensor) -> Products:
    """The fastest for a matrix of this kind."""
    usual = weight.dtype == torch.float32 and weight.is_cpu and weight.is_contiguous()
    library = loaded() if usual and weight.numel() >= FEWEST_WEIGHTS else None
    return Products() if library is None else CompiledProducts(library)


@cache
def loaded() -> ctypes.CDLL | None:
    """The kernel."""
    library = kernels.load("dense")
    return None if library is None else typed(library)


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The kernel with the types of its functions."""
    pointer, size, number = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float
    library.dense_floats.restype = size
    library.dense_floats.argtypes = (size, size)
    library.dense_dots.restype = library.dense_mix.restype = library.dense_step.restype = None
    library.dense_dots.argtypes = library.dense_mix.argtypes = (*(pointer,) * 3, *(size,) * 3, pointer)
    library.dense_step.argtypes = (*(pointer,) * 4, number, pointer, number, pointer, *(size,) * 3, pointer)
    return library
