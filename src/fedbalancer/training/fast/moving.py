"""A matrix of weights while SGD moves it.

All clients of a round start at the same w_0, and a step adds a product of as many rows as its batch has: after some
steps w = w_0 - lr * (sum of g^T x). At first that sum stays factored. Products with w are then products with w_0 and
with the few rows of g and x, no step writes a matrix, and the update of a client with few steps, usual after sample
selection, is one large product at the end. When the rank has grown too far, w is formed in memory of its own, and every
further step is added to it in the pass that makes the gradient of the input. It is the same SGD throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbalancer.training.fast.products import Products, products_for

SHARE = 8
"""Factors are kept while the work with them is at most about one part in so many of that with w."""
FEWEST = 4
"""Nothing is factored where fewer steps than these would be."""


class MovingWeight:
    """One matrix, trained from `begin` on; the matrix that is given there is only read.

    A step is w <- w - lr * (g^T x + mu * (w - w_0)). While w is factored the last term scales the earlier rows of g.
    """

    def __init__(self) -> None:
        self._products = Products()
        self._g = self._x = self._formed = torch.empty(0)
        self._kind: tuple[object, ...] = ()
        self._rank = 0
        self._is_formed = False

    def begin(self, weight: Tensor, lr: float, mu: float, rows: int | None = None) -> None:
        """Start from these values. If it is known that all batches together have so many rows, and these are too many,
        nothing is factored: the factors would only be formed later."""
        self._start, self._lr, self._share = weight, lr, lr * mu
        self._rank, self._is_formed = 0, False
        kind = (weight.shape, weight.dtype, weight.device, weight.is_contiguous())
        if kind != self._kind:
            self._kind = kind
            self._products = products_for(weight)
            out, width = weight.shape
            rank = out * width // (SHARE * (out + width))
            self._g, self._x = weight.new_empty(rank, out), weight.new_empty(rank, width)
            self._formed = weight.new_empty(0)
        self._most = len(self._g) if rows is None or rows <= len(self._g) else 0

    def add_outputs(self, y: Tensor, x: Tensor) -> None:
        """y += x w^T"""
        self._products.dots(y, x, self._formed if self._is_formed else self._start)
        if self._rank:
            self._add_through(y, x, self._x[: self._rank], self._g[: self._rank])

    def step(self, x: Tensor, g: Tensor, z: Tensor | None) -> None:
        """z += g w, if there is a z; then the step."""
        if not self._stays_factored(x.shape[0]):
            self._step_formed(x, g, z)
            return
        if z is not None:
            self._products.mix(z, g, self._start)
            if self._rank:
                self._add_through(z, g, self._g[: self._rank], self._x[: self._rank])
        self._append(x, g)

    def write(self, to: Tensor) -> None:
        """to = w; it may be the matrix that was given."""
        if self._is_formed:
            to.copy_(self._formed)
        else:
            self._products.outer(to, self._start, *self._factors())

    def write_update(self, to: Tensor) -> None:
        """to = w - w_0"""
        if self._is_formed:
            torch.sub(self._formed, self._start, out=to)
        else:
            self._products.outer(to, None, *self._factors())

    def _stays_factored(self, rows: int) -> bool:
        return not self._is_formed and self._rank + rows <= self._most and FEWEST * rows <= self._most

    def _add_through(self, y: Tensor, x: Tensor, one: Tensor, other: Tensor) -> None:
        """y += -lr x one^T other: the part of a product that the factors have."""
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
