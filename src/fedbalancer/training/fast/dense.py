"""A dense layer that takes its own step of SGD in the backward pass. `moving` says how its weights are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as plain_linear

from fedbalancer.training.fast.moving import MovingWeight


class FusedDense(nn.Module):
    """What `nn.Linear` computes, for inputs of two dimensions (rows, features); its parameters are those of the given
    layer.

    Between `begin` and `finish` (or `end`) every backward pass is a step w <- w - lr * (gradient + mu * (w -
    w_0)) with w_0 the parameters at `begin`, and leaves no gradients; the parameters themselves are not written until
    `finish`. Outside it is a plain dense layer. Clipping and momentum it cannot do.

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
        # Something that needs a gradient, so that there is a backward pass whatever the input is.
        self._anchor = torch.zeros((), requires_grad=True)

    def begin(self, lr: float, mu: float, rows: int | None = None) -> None:
        """Train from the current parameters; what was begun before is dropped. It is a little faster if it is known how
        many rows all batches of the training will have together."""
        self._moving.begin(self.weight.detach(), lr, mu, rows)
        self._shift = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias.detach().clone()
        self._lr, self._share = lr, lr * mu
        self._begun, self._waits = True, False

    def forward(self, x: Tensor) -> Tensor:
        if not self._begun:
            return plain_linear(x, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return self.outputs(x.contiguous())
        outputs: Tensor = _OwnStep.apply(x, self._anchor, self)  # type: ignore[no-untyped-call]
        return outputs

    def expecting(self, x: Tensor) -> Tensor:
        """The outputs of a batch for which `step` will be called next."""
        if self._waits:
            raise RuntimeError("a dense layer with its own step was used twice before a backward pass")
        outputs = self.outputs(x)
        self._waits = True
        return outputs

    def outputs(self, x: Tensor) -> Tensor:
        """The product with the weights as they are after the steps so far."""
        _check(x, self.weight.shape[1], self.weight.dtype)
        y = self._shift.repeat(x.shape[0], 1)
        self._moving.add_outputs(y, x)
        return y

    def step(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """A step with the outputs' gradient g; gives the gradient of x, from before the step, if wanted."""
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
        """Write what was trained into the parameters."""
        if self._begun:
            self._moving.write(self.weight.detach())
            if self.bias is not None:
                self.bias.detach().copy_(self._shift)
        self._begun = False

    def end(self) -> None:
        """Leave the parameters as they were at `begin`."""
        self._begun = False

    def update_into(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Write what was trained so far minus what there was at `begin` into these; the training may go on.

        False, and nothing written, if nothing was begun or a tensor is not a contiguous one of its parameter's kind.
        """
        pairs = [(weight, self.weight), (bias, self.bias)]
        if not self._begun or not all(_alike(tensor, parameter) for tensor, parameter in pairs):
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
        return layer.expecting(x)

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


def _alike(tensor: Tensor | None, parameter: Tensor | None) -> bool:
    if tensor is None or parameter is None:
        return tensor is parameter
    kind = (tensor.shape, tensor.dtype, tensor.device)
    return kind == (parameter.shape, parameter.dtype, parameter.device) and tensor.is_contiguous()
