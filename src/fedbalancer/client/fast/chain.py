"""A model that is a plain row of layers, trained without autograd's bookkeeping.

With batches of ten, what torch does around a kernel (a node of the graph, its saved tensors, fresh memory) costs up
to a quarter of a step. Where the model is nothing but a row of layers that we know, each layer here does its forward
and its backward pass itself, in memory that it keeps. Any other model is left to autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedbalancer.client.fast.conv import Call, ConvBlock, loaded
from fedbalancer.client.fast.dense import FusedDense
from fedbalancer.client.fast.match import plain


class Link(Protocol):
    """One layer; called without gradients, forward and backward in turn."""

    def forward(self, x: Tensor) -> Tensor: ...
    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        """Leaves the gradients of the parameters in their `grad`, if the layer does not step itself; the gradient of
        the input, if wanted."""


class Chain:
    """A row of links. `backward` takes the gradient of the outputs of the last call."""

    def __init__(self, links: list[Link]) -> None:
        self.links = links

    def __call__(self, x: Tensor) -> Tensor:
        for link in self.links:
            x = link.forward(x)
        return x

    def backward(self, g: Tensor) -> None:
        first = self.links[0]
        for link in reversed(self.links):
            made = link.backward(g, wanted=link is not first)
            if made is not None:
                g = made


def chain_of(module: nn.Module, sample: Tensor) -> Chain | None:
    """The module as a chain; None if it is anything but a row of layers that we know, each used once."""
    layers = list(_leaves(module))
    kinds = [_KINDS.get(type(layer)) for layer in layers]
    if not layers or len(set(map(id, layers))) < len(layers) or None in kinds:
        return None
    if not all(plain(layer) for layer in layers) or not all(p.requires_grad for p in module.parameters()):
        return None
    chain = Chain([kind(layer) for kind, layer in zip(kinds, layers, strict=True) if kind is not None])
    with torch.no_grad():
        return chain if _fits(chain, sample) else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and plain(module):
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _fits(chain: Chain, x: Tensor) -> bool:
    """Whether every layer gets an input of the kind that it is written for."""
    for link in chain.links:
        if x.dtype != torch.float32 or (isinstance(link, _Dense | _OwnStep) and x.ndim != 2):
            return False
        x = link.layer(x) if isinstance(link, _OwnStep) else link.forward(x)
    return True


class _Convolution:
    def __init__(self, layer: ConvBlock) -> None:
        self.layer = layer
        self._kept: dict[torch.Size, _Kept] = {}

    def forward(self, x: Tensor) -> Tensor:
        kept = self._kept.get(x.shape)
        if kept is None:
            kept = self._kept[x.shape] = _Kept(self.layer.call(x.shape), self.layer)
        self._now, call = kept, kept.call
        weight, shift, padded, scratch, outputs, places = kept.forward_at
        loaded().conv_forward(
            call.block, x.data_ptr(), call.strides(x), weight, shift, padded, scratch, outputs, places
        )  # fmt: skip
        return kept.shown

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        kept, call = self._now, self._now.call
        of_input = kept.of_input if wanted else None
        loaded().conv_backward(
            call.block, g.data_ptr(), call.strides(g), *kept.backward_at,
            None if of_input is None else of_input.data_ptr(),
        )  # fmt: skip
        self.layer.weight.grad = kept.of_weight
        if self.layer.bias is not None:
            self.layer.bias.grad = kept.of_bias
        return None if of_input is None else call.inside(of_input)


class _Kept:
    """The memory of a convolution for one size of input."""

    def __init__(self, call: Call, layer: ConvBlock) -> None:
        weight = layer.weight.detach()
        self.call = call
        self._shift = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        self._outputs, places = torch.empty(call.outputs), torch.empty(call.outputs, dtype=torch.int32)
        self.shown = self._outputs.movedim(-1, 1)
        self.of_weight, self.of_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        padded, scratch = torch.empty(call.padded), torch.empty(max(call.forward, call.backward))
        self.of_input = torch.empty(call.padded)
        self._tensors = (weight, self._shift, padded, scratch, self._outputs, places)
        self.forward_at = tuple(tensor.data_ptr() for tensor in self._tensors)
        backward = (places, padded, weight, scratch, self.of_weight, self.of_bias)
        self.backward_at = tuple(tensor.data_ptr() for tensor in backward)


class _OwnStep:
    def __init__(self, layer: FusedDense) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self._x = x.contiguous()
        return self.layer.expecting(self._x)

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        return self.layer.step(self._x, g.contiguous(), wanted)


class _Dense:
    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        self.layer.weight.grad = torch.mm(g.t(), self._x)
        if self.layer.bias is not None:
            self.layer.bias.grad = g.sum(dim=0)
        return torch.mm(g, self.layer.weight) if wanted else None


class _ReLU:
    def __init__(self, layer: nn.ReLU) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        self._y = torch.relu(x)
        return self._y

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        return torch.ops.aten.threshold_backward(g, self._y, 0) if wanted else None


class _Flatten:
    def __init__(self, layer: nn.Flatten) -> None:
        self._layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        return x.flatten(self._layer.start_dim, self._layer.end_dim)

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        return g.view(self._shape)


_KINDS: dict[type[nn.Module], Any] = {
    ConvBlock: _Convolution, FusedDense: _OwnStep, nn.Linear: _Dense, nn.ReLU: _ReLU, nn.Flatten: _Flatten,
}  # fmt: skip
