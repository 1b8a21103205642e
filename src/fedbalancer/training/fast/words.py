"""The last dense layer of a language model, one score for every word at every step, together with its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as plain_linear

from fedbalancer.training.fast.scores import Scores, scores_for


class WordLosses(nn.Module):
    """A dense layer at the end of a model; its parameters are those of the given one.

    Without `labels` it is a plain dense layer. With labels (samples, steps) it gives the samples' losses in place of
    the scores: the mean over the steps of the cross-entropy, 0 at steps whose label is the number of words. For these
    nothing is computed. After a backward pass it holds its gradient (see `held`).
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.labels: Tensor | None = None
        self.losses: Tensor | None = None
        self.scores: Scores | None = None
        self._holds = False
        self._anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass

    def begin(self) -> None:
        self.labels = self.losses = None
        self._holds = False
        bias = None if self.bias is None else self.bias.detach()
        if self.scores is None or not self.scores.weight.is_set_to(self.weight):
            self.scores = scores_for(self.weight.detach(), bias)

    def end(self) -> None:
        self.labels = self.losses = None
        self._holds = False

    def forward(self, x: Tensor) -> Tensor:
        if self.labels is None:
            return plain_linear(x, self.weight, self.bias)
        if self.losses is not None or x.shape[:-1] != self.labels.shape or self.labels.ndim != 2:
            raise RuntimeError("a dense layer with its loss was used twice, or not once for every label")
        losses: Tensor = _Losses.apply(x, self._anchor, self, self.labels, self.scores)  # type: ignore[no-untyped-call]
        self.losses = losses
        return losses

    def hold(self) -> None:
        """The gradient is there."""
        self._holds = True

    def most(self) -> float:
        return self.scores.most() if self._holds and self.scores is not None else 0.0

    def square(self) -> float:
        return self.scores.square() if self._holds and self.scores is not None else 0.0

    def step(self, rate: float) -> None:
        if self._holds and self.scores is not None:
            self.scores.step(rate)
        self.end()


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: WordLosses, labels: Tensor, scores: Scores) -> Tensor:
        flat = labels.flatten()
        count = (flat != len(layer.weight)).nonzero().flatten()
        losses = x.new_zeros(len(flat))
        if len(count):
            losses[count] = scores.losses(x.reshape(-1, x.shape[-1])[count], flat[count])
        ctx.save_for_backward(count)
        ctx.layer, ctx.scores, ctx.shape = layer, scores, x.shape
        return losses.view(labels.shape).mean(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (count,) = ctx.saved_tensors
        steps, scores = ctx.shape[1], ctx.scores
        of_x = gradient.new_zeros(ctx.shape) if ctx.needs_input_grad[0] else None
        if len(count):
            scores.weigh(gradient[count // steps] / steps)
            ctx.layer.hold()
            if of_x is not None:
                of_x.view(-1, ctx.shape[-1])[count] = scores.of_inputs()
        return of_x, None, None, None, None
