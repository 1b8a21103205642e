"""Layers that hold their gradient back in factors until the clipping of all gradients is known.

A language model of many words spends much of a step on gradients that are written, read, scaled and read again: of an
embedding, where only the rows of the batch's tokens have one; and of the last dense layer, as large as its weights but
a product of few rows. Here neither is ever formed. Their norms come from the factors, and the step, once the clipping
is known, goes straight into the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding as plain_embedding


class Held(Protocol):
    """A layer between `begin` and `end`: every backward pass is followed by one `step`, or by none."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def most(self) -> float:
        """A square that that of the norm of the gradients of the last backward pass is not above, found quickly."""

    def square(self) -> float:
        """The square of that norm."""

    def step(self, rate: float) -> None:
        """Every parameter minus `rate` times its gradient."""


class FewRows(nn.Module):
    """What `nn.Embedding` computes; its parameter is that of the given one.

    >>> layer = FewRows(nn.Embedding(5, 2))
    >>> before = layer.weight.detach().clone()
    >>> layer.begin()
    >>> layer(torch.tensor([1, 3, 3])).sum().backward()
    >>> layer.square()
    10.0
    >>> layer.step(0.5)
    >>> (before - layer.weight).sum(dim=1).round().tolist()
    [0.0, 1.0, 0.0, 2.0, 0.0]
    """

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__()
        self.weight = layer.weight
        self._begun = False
        self._made: tuple[Tensor, Tensor] | None = None
        self._anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass

    @staticmethod
    def suits(layer: nn.Embedding) -> str | None:
        """Why this layer cannot be replaced, None if it can."""
        reasons = {
            "it has padding_idx": layer.padding_idx is not None,
            "it has max_norm": layer.max_norm is not None,
            "its gradients are scaled or sparse": layer.scale_grad_by_freq or layer.sparse,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def begin(self) -> None:
        self._begun, self._made = True, None

    def end(self) -> None:
        self._begun, self._made = False, None

    def forward(self, x: Tensor) -> Tensor:
        if not (self._begun and torch.is_grad_enabled()):
            return plain_embedding(x, self.weight)
        if self._made is not None:
            raise RuntimeError("an embedding that holds its gradient was used twice before a step")
        rows: Tensor = _Rows.apply(x, self._anchor, self)  # type: ignore[no-untyped-call]
        return rows

    def hold(self, x: Tensor, gradient: Tensor) -> None:
        """Note the gradient of the rows of these tokens, those of equal tokens added up."""
        tokens, places = torch.unique(x, return_inverse=True)
        rows = gradient.new_zeros(len(tokens), gradient.shape[-1])
        rows.index_add_(0, places.flatten(), gradient.flatten(0, -2))
        self._made = tokens, rows

    def square(self) -> float:
        return 0.0 if self._made is None else float(self._made[1].square().sum(dtype=torch.float64))

    most = square

    def step(self, rate: float) -> None:
        if self._made is not None:
            self.weight.detach().index_add_(0, *self._made, alpha=-rate)
        self._made = None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: FewRows) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return plain_embedding(x, layer.weight.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.layer.hold(ctx.saved_tensors[0], gradient)
        return None, None, None
