"""The last dense layer of a language model, one score for every word at every step, together with its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as plain_linear

Pending = tuple[Tensor, Tensor, float]
"""Rows x of the input, and g and a factor: the gradient of the weights is factor * g^T x."""


class WordLosses(nn.Module):
    """A dense layer at the end of a model; its parameters are those of the given one.

    Without `labels` it is a plain dense layer. With labels (samples, steps) it gives the samples' losses in place of the
    scores: the mean over the steps of the cross-entropy, 0 at steps whose label is the number of words. For these
    nothing is computed. After a backward pass it holds its gradient (see `held`).
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.labels: Tensor | None = None
        self.losses: Tensor | None = None
        self._pending: Pending | None = None
        self._scores = self._logs = torch.empty(0)
        self._anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass

    def begin(self) -> None:
        self.labels = self.losses = self._pending = None

    end = begin

    def forward(self, x: Tensor) -> Tensor:
        if self.labels is None:
            return plain_linear(x, self.weight, self.bias)
        if self.losses is not None or x.shape[:-1] != self.labels.shape:
            raise RuntimeError("a dense layer with its loss was used twice, or not once for every label")
        losses: Tensor = _Losses.apply(x, self._anchor, self)  # type: ignore[no-untyped-call]
        self.losses = losses
        return losses

    def scored(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of rows of x, and the gradient of each with respect to its scores, in memory that is kept."""
        if len(self._logs) < len(x):
            self._logs = self.weight.new_empty(len(x), len(self.weight))
        logs = self._logs[: len(x)]
        scores = _scores(x, self.weight.detach(), self.bias)
        torch.ops.aten._log_softmax.out(scores, 1, False, out=logs)
        at = torch.arange(len(x)), labels
        losses = -logs[at]
        gradient = logs.exp_()
        gradient[at] -= 1.0
        return losses, gradient

    def hold(self, x: Tensor, g: Tensor, factor: float) -> None:
        """Note the factors of the gradient."""
        self._pending = x, g, factor

    def most(self) -> float:
        """Of the sum of the norms of the parts that every row adds."""
        if self._pending is None:
            return 0.0
        x, g, factor = self._pending
        sides = x.square().sum(dim=1, dtype=torch.float64) + (self.bias is not None)
        return float((sides * torch.linalg.vector_norm(g, dim=1).double().square()).sqrt().sum() * factor) ** 2

    def square(self) -> float:
        """Of g^T x and of the sum of the rows of g, by the products of every two rows: the sum over both of (g g^T) *
        (x x^T + 1)."""
        if self._pending is None:
            return 0.0
        x, g, factor = self._pending
        both = torch.mm(x, x.t())
        if self.bias is not None:
            both += 1.0
        return factor**2 * float(torch.mm(g, g.t()).mul_(both).sum(dtype=torch.float64))

    def step(self, rate: float) -> None:
        if self._pending is not None:
            x, g, factor = self._pending
            self.weight.detach().addmm_(g.t(), x, alpha=-rate * factor)
            if self.bias is not None:
                self.bias.detach().add_(g.sum(dim=0), alpha=-rate * factor)
        self.begin()


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: WordLosses) -> Tensor:
        assert layer.labels is not None
        steps, labels = layer.labels.shape[1], layer.labels.flatten()
        count = (labels != len(layer.weight)).nonzero().flatten()
        rows = x.reshape(-1, x.shape[-1])[count]
        values, g = layer.scored(rows, labels[count])
        ctx.save_for_backward(count, rows, g)
        ctx.layer, ctx.shape, ctx.steps = layer, x.shape, steps
        losses = x.new_zeros(len(labels))
        losses[count] = values
        return losses.view(-1, steps).mean(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        count, rows, g = ctx.saved_tensors
        layer: WordLosses = ctx.layer
        factor = 1.0 / ctx.steps
        if bool((gradient == gradient[:1]).all()):  # as of a mean over the samples
            factor *= float(gradient[0])
        else:
            g.mul_(gradient[count // ctx.steps, None])
        layer.hold(rows, g, factor)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        of_x = rows.new_zeros(ctx.shape)
        of_x.view(-1, rows.shape[1])[count] = torch.mm(g, layer.weight.detach()).mul_(factor)
        return of_x, None, None


def _scores(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x w^T + bias, by oneDNN's product where this torch has it, which is the faster one."""
    if _POINTWISE is not None and x.dtype == torch.float32:
        scores: Tensor = _POINTWISE(x, weight, bias, "none", [], "")
        return scores
    return plain_linear(x, weight, bias)


def _pointwise() -> Any:
    """A private operation of torch, if it is there and does what we know of it."""
    x, weight, bias = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    try:
        operation = torch.ops.mkldnn._linear_pointwise
        return operation if torch.equal(operation(x, weight, bias, "none", [], ""), torch.full((2, 4), 4.0)) else None
    except (AttributeError, RuntimeError, TypeError):
        return None


_POINTWISE = _pointwise()
