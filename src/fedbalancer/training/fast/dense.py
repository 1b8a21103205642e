"""A dense layer that takes its own SGD step in the backward pass, by the kernel in `dense.c` for small batches.

All clients of a round start at the same w_0, and a step adds a product of as many rows as its batch has. After some
steps w = w_0 - lr * (sum of g^T x). At first that sum stays factored: products with w are products with w_0 and with
the few rows of g and x, and no step writes a matrix. The update of a client with few steps, which sample selection
makes common, is one large product at the end. When the rank grows too far, w is formed in separate memory, and every
further step is added to it in the pass that computes the gradient of the input. It is the same SGD throughout.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as plain_linear

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch


class FusedDense(nn.Module):
    """An `nn.Linear` for inputs of shape (rows, features) that takes its own SGD steps.

    Between `begin` and `finish` (or `end`) every backward pass is a step w <- w - lr * (gradient + mu * (w - w_0)),
    where w_0 are the parameters at `begin`. It leaves no gradients, and the parameters are written only by `finish`.
    Otherwise it is a plain dense layer. It supports neither clipping nor momentum.

    Args:
        linear: The dense layer, whose parameters are shared.

    >>> layer = FusedDense(nn.Linear(3, 2))
    >>> before = layer.bias.detach().clone()
    >>> layer.begin(lr=0.5, mu=0.0)
    >>> layer(torch.ones(4, 3)).sum().backward()
    >>> layer.finish()
    >>> (layer.bias - before).round().tolist()
    [-2.0, -2.0]
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._moving = MovingWeight()
        self._begun = self._waits = False
        # It needs a gradient, so that there is always a backward pass.
        self._anchor = torch.zeros((), requires_grad=True)

    def begin(self, lr: float, mu: float, rows: int | None = None) -> None:
        """Begin a training from the current parameters.

        Args:
            lr: Learning rate.
            mu: Weight of the proximal term.
            rows: Rows of all batches of the training together; knowing them makes it slightly faster.
        """
        self._moving.begin(self.weight.detach(), lr, mu, rows)
        self._shift = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias.detach().clone()
        self._lr, self._share = lr, lr * mu
        self._begun, self._waits = True, False

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        if not self._begun:
            return plain_linear(x, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return self.outputs(x.contiguous())
        outputs: Tensor = _OwnStep.apply(x, self._anchor, self)  # type: ignore[no-untyped-call]
        return outputs

    def forward_before_step(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch; `step` must follow."""
        if self._waits:
            raise RuntimeError("a dense layer with its own step was used twice before a backward pass")
        outputs = self.outputs(x)
        self._waits = True
        return outputs

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs with the current weights."""
        _check(x, self.weight.shape[1], self.weight.dtype)
        y = self._shift.repeat(x.shape[0], 1)
        self._moving.add_outputs(y, x)
        return y

    def step(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Take a step with the outputs' gradient `g`.

        Args:
            x: The inputs.
            g: The gradient of the outputs.
            wanted: Whether to return the gradient of `x`, computed before the step.
        """
        if not (self._begun and self._waits):
            raise RuntimeError("a dense layer with its own step had more than one backward pass for a forward pass")
        _check(g, len(self.weight), self.weight.dtype)
        self._waits = False
        z = torch.zeros_like(x) if wanted else None
        self._moving.step(x, g, z)
        if self.bias is not None:
            if self._share:
                self._shift.lerp_(self.bias.detach(), self._share)
            self._shift.add_(g.sum(dim=0), alpha=-self._lr)
        return z

    def finish(self) -> None:
        """End the training and write its result into the parameters."""
        if self._begun:
            self._moving.write(self.weight.detach())
            if self.bias is not None:
                self.bias.detach().copy_(self._shift)
        self._begun = False

    def end(self) -> None:
        """End the training without changing the parameters."""
        self._begun = False

    def update_into(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Write the current update into these tensors; the training may continue.

        Returns:
            False, with nothing written, if no training was begun or a tensor is not contiguous or not like its
            parameter.
        """
        pairs = [(weight, self.weight), (bias, self.bias)]
        if not self._begun or not all(_is_alike(tensor, parameter) for tensor, parameter in pairs):
            return False
        self._moving.write_update(weight)
        if bias is not None and self.bias is not None:
            torch.sub(self._shift, self.bias.detach(), out=bias)
        return True


class _OwnStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: FusedDense) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.forward_before_step(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.layer.step(x, gradient.contiguous(), ctx.needs_input_grad[0]), None, None


def _check(rows: Tensor, width: int, dtype: torch.dtype) -> None:
    if rows.ndim != 2 or rows.shape[1] != width or rows.dtype != dtype:
        raise ValueError(
            f"a dense layer that takes its own step needs (rows, {width}) of {dtype}, not {tuple(rows.shape)} of "
            f"{rows.dtype}"
        )


def _is_alike(tensor: Tensor | None, parameter: Tensor | None) -> bool:
    if tensor is None or parameter is None:
        return tensor is parameter
    kind = (tensor.shape, tensor.dtype, tensor.device)
    return kind == (parameter.shape, parameter.dtype, parameter.device) and tensor.is_contiguous()


SHARE = 8
"""Factors are kept while their work is at most about 1 / SHARE of the work with w."""
MIN_STEPS = 4
"""Nothing is factored if fewer steps than this would be."""


class MovingWeight:
    """A weight matrix during training; the initial matrix is only read.

    A step is w <- w - lr * (g^T x + mu * (w - w_0)). While w is factored, the last term scales the earlier rows of g.
    """

    def __init__(self) -> None:
        self._products = Products()
        self._g = self._x = self._formed = torch.empty(0)
        self._kind: tuple[object, ...] = ()
        self._rank = 0
        self._is_formed = False

    def begin(self, weight: Tensor, lr: float, mu: float, rows: int | None = None) -> None:
        """Begin a training.

        Args:
            weight: The initial matrix.
            lr: Learning rate.
            mu: Weight of the proximal term.
            rows: Rows of all batches together; if they are too many, nothing is factored.
        """
        self._start, self._lr, self._share = weight, lr, lr * mu
        self._rank, self._is_formed = 0, False
        kind = (weight.shape, weight.dtype, weight.device, weight.is_contiguous())
        if kind != self._kind:
            self._kind = kind
            self._products = make_products(weight)
            out, width = weight.shape
            rank = out * width // (SHARE * (out + width))
            self._g, self._x = weight.new_empty(rank, out), weight.new_empty(rank, width)
            self._formed = weight.new_empty(0)
        self._max_rank = len(self._g) if rows is None or rows <= len(self._g) else 0

    def add_outputs(self, y: Tensor, x: Tensor) -> None:
        """Compute y += x w^T."""
        self._products.dots(y, x, self._formed if self._is_formed else self._start)
        if self._rank:
            self._add_through(y, x, self._x[: self._rank], self._g[: self._rank])

    def step(self, x: Tensor, g: Tensor, z: Tensor | None) -> None:
        """Compute z += g w, if there is a z; then take the step."""
        if not self._stays_factored(x.shape[0]):
            self._step_formed(x, g, z)
            return
        if z is not None:
            self._products.mix(z, g, self._start)
            if self._rank:
                self._add_through(z, g, self._g[: self._rank], self._x[: self._rank])
        self._append(x, g)

    def write(self, to: Tensor) -> None:
        """Compute to = w; `to` may be the initial matrix."""
        if self._is_formed:
            to.copy_(self._formed)
        else:
            self._products.outer(to, self._start, *self._factors())

    def write_update(self, to: Tensor) -> None:
        """Compute to = w - w_0."""
        if self._is_formed:
            torch.sub(self._formed, self._start, out=to)
        else:
            self._products.outer(to, None, *self._factors())

    def _stays_factored(self, rows: int) -> bool:
        return not self._is_formed and self._rank + rows <= self._max_rank and MIN_STEPS * rows <= self._max_rank

    def _add_through(self, y: Tensor, x: Tensor, one: Tensor, other: Tensor) -> None:
        """Compute y += -lr x one^T other, the factored part of a product."""
        between = x.new_zeros(x.shape[0], self._rank)
        self._products.dots(between, x, one)
        self._products.mix(y, between.mul_(-self._lr), other)

    def _append(self, x: Tensor, g: Tensor) -> None:
        if self._share:
            self._g[: self._rank].mul_(1.0 - self._share)
        rows = slice(self._rank, self._rank + x.shape[0])
        self._x[rows], self._g[rows] = x, g
        self._rank = rows.stop

    def _step_formed(self, x: Tensor, g: Tensor, z: Tensor | None) -> None:
        if self._formed.shape != self._start.shape:
            self._formed = torch.empty_like(self._start)
        if self._rank:
            self._products.outer(self._formed, self._start, *self._factors())
            self._rank, self._is_formed = 0, True
        now = self._formed if self._is_formed else self._start
        pull = (self._start, self._share) if self._share else None
        self._products.step(z, self._formed, now, g, -self._lr, x, pull)
        self._is_formed = True

    def _factors(self) -> tuple[Tensor, float, Tensor]:
        return self._g[: self._rank], -self._lr, self._x[: self._rank]


MAX_ROWS = 32
"""Rows of a batch up to which the kernel is faster than torch."""
MIN_WEIGHTS = 1 << 16
"""A smaller matrix fits the caches, and a call costs as much as its work."""

Pull = tuple[Tensor, float] | None
"""The matrix that a proximal step moves towards, and the share of the distance; None without a proximal term."""


class Products:
    """The products of a dense layer, computed by torch.

    A matrix w has shape (out, in), x and z have (rows, in), y and g have (rows, out).
    """

    def dots(self, y: Tensor, x: Tensor, w: Tensor) -> None:
        """Compute y += x w^T."""
        y.addmm_(x, w.t())

    def mix(self, z: Tensor, g: Tensor, w: Tensor) -> None:
        """Compute z += g w."""
        z.addmm_(g, w)

    def outer(self, to: Tensor, start: Tensor | None, g: Tensor, scale: float, x: Tensor) -> None:
        """Compute to = start + scale g^T x; `start` may be `to`, and None means 0."""
        if start is None:
            to.zero_()
        elif start is not to:
            to.copy_(start)
        to.addmm_(g.t(), x, alpha=scale)

    def step(self, z: Tensor | None, to: Tensor, w: Tensor, g: Tensor, scale: float, x: Tensor, pull: Pull) -> None:
        """Compute z += g w, if there is a z; then to = w + share (base - w) + scale g^T x. `to` may be w."""
        if z is not None:
            self.mix(z, g, w)
        if pull is not None:
            w = torch.lerp(w, *pull, out=to)
        self.outer(to, w, g, scale, x)


class CompiledProducts(Products):
    """The products of a dense layer, by the kernel if there are few rows.

    All tensors must be contiguous float32 on the CPU.

    Args:
        library: The kernel.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def dots(self, y: Tensor, x: Tensor, w: Tensor) -> None:
        if len(x) > MAX_ROWS:
            super().dots(y, x, w)
            return
        rows, (out, width) = len(x), w.shape
        self._library.dense_dots(
            pointer(y, (rows, out)), pointer(x, (rows, width)), pointer(w, (out, width)), rows, width, out,
            self._scratch(rows, width),
        )  # fmt: skip

    def mix(self, z: Tensor, g: Tensor, w: Tensor) -> None:
        if len(z) > MAX_ROWS:
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
        if len(x) > MAX_ROWS:
            super().step(z, to, w, g, scale, x, pull)
        else:
            self._step(z, to, w, g, scale, x, pull)

    def _step(
        self, z: Tensor | None, to: Tensor, w: Tensor | None, g: Tensor, scale: float, x: Tensor, pull: Pull
    ) -> None:
        rank, (out, width) = len(x), to.shape
        base, share = pull or (None, 0.0)
        z_at, w_at, base_at = (
            None if tensor is None else pointer(tensor, shape)
            for tensor, shape in ((z, (rank, width)), (w, (out, width)), (base, (out, width)))
        )
        self._library.dense_step(
            z_at, pointer(to, (out, width)), w_at, base_at, share, pointer(g, (rank, out)), scale,
            pointer(x, (rank, width)), rank, width, out, self._scratch(rank, width),
        )  # fmt: skip

    def _scratch(self, rows: int, width: int) -> int:
        return scratch(self._library.dense_floats(rows, width))


def make_products(weight: Tensor) -> Products:
    """Return the fastest products for a matrix like this."""
    suits = weight.dtype == torch.float32 and weight.is_cpu and weight.is_contiguous()
    library = load_kernel() if suits and weight.numel() >= MIN_WEIGHTS else None
    return Products() if library is None else CompiledProducts(library)


@cache
def load_kernel() -> ctypes.CDLL | None:
    """Load the kernel; None if there is none."""
    library = kernels.load("dense")
    return None if library is None else declare_types(library)


def declare_types(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the kernel's functions."""
    pointer, size, number = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float
    library.dense_floats.restype = size
    library.dense_floats.argtypes = (size, size)
    library.dense_dots.restype = library.dense_mix.restype = library.dense_step.restype = None
    library.dense_dots.argtypes = library.dense_mix.argtypes = (*(pointer,) * 3, *(size,) * 3, pointer)
    library.dense_step.argtypes = (*(pointer,) * 4, number, pointer, number, pointer, *(size,) * 3, pointer)
    return library
