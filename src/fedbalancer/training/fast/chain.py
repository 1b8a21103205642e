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

from fedbalancer.training.channels_last import ChannelsLast
from fedbalancer.training.fast.conv import Call, ConvBlock
from fedbalancer.training.fast.conv_norm import ConvNormBlock, NormCall
from fedbalancer.training.fast.conv_norm import Kept as KeptNorm
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.match import plain


class Link(Protocol):
    """One layer; called without gradients, forward and backward in turn."""

    def forward(self, x: Tensor) -> Tensor: ...
    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        """Leaves the gradients of the parameters in their `grad`, if the layer does not step itself; the gradient of
        the input, if wanted."""


class Chain:
    """Layers that are called one after the other. `backward` takes the gradient of the outputs of the last call."""

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


def chain_of(module: nn.Module) -> Chain | None:
    """The module as a chain; None if it is anything but a row of layers that we know, each used once."""
    layers = layers_of(module)
    kinds = [_KINDS.get(type(layer)) for layer in layers]
    if not layers or len(set(map(id, layers))) < len(layers) or None in kinds:
        return None
    if not all(plain(layer) for layer in layers) or not all(p.requires_grad for p in module.parameters()):
        return None
    return Chain([kind(layer) for kind, layer in zip(kinds, layers, strict=True) if kind is not None])


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a plain row; of anything else the module itself."""
    return list(_leaves(module))


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and plain(module):
        for child in module:
            yield from _leaves(child)
    elif type(module) is ChannelsLast and plain(module):
        return  # a link takes its values from wherever they lie
    else:
        yield module


class _Convolution:
    def __init__(self, layer: ConvBlock) -> None:
        self.layer = layer
        self._kept: dict[torch.Size, _Kept] = {}

    def forward(self, x: Tensor) -> Tensor:
        kept = self._kept.get(x.shape)
        if kept is None:
            kept = self._kept[x.shape] = _Kept(self.layer.call(x.shape), self.layer)
        self._now = kept
        kept.call.forward(x, kept.weight, kept.shift, kept.padded, kept.outputs, kept.places)
        return kept.shown

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        kept = self._now
        of_input = kept.of_input if wanted else None
        kept.call.backward(g, kept.places, kept.padded, kept.weight, kept.of_weight, kept.of_bias, of_input)
        self.layer.weight.grad = kept.of_weight
        if self.layer.bias is not None:
            self.layer.bias.grad = kept.of_bias
        return None if of_input is None else kept.call.inside(of_input)


class _Kept:
    """The memory of a convolution for one shape of input."""

    def __init__(self, call: Call, layer: ConvBlock) -> None:
        self.call, self.weight = call, layer.weight.detach()
        self.shift = self.weight.new_zeros(len(self.weight)) if layer.bias is None else layer.bias.detach()
        self.outputs, self.places = torch.empty(call.outputs), torch.empty(call.outputs, dtype=torch.int32)
        self.shown = self.outputs.movedim(-1, 1)
        self.padded, self.of_input = torch.empty(call.padded), torch.empty(call.padded)
        self.of_weight, self.of_bias = torch.empty_like(self.weight), torch.empty_like(self.shift)


class _NormedConvolution:
    def __init__(self, layer: ConvNormBlock) -> None:
        self.weight, self.scale, self.shift = layer.weight, layer.scale, layer.shift
        self.layer = layer
        self._of_weight, self._of_scale, self._of_shift = (
            torch.empty_like(parameter.detach()) for parameter in (layer.weight, layer.scale, layer.shift)
        )
        self._kept: dict[torch.Size, tuple[NormCall, KeptNorm, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        found = self._kept.get(x.shape)
        if found is None:
            call = self.layer.call(x.shape)
            found = self._kept[x.shape] = (call, KeptNorm(call), torch.empty(call.padded))
        self._now = found
        found[0].normed(x, self.weight, self.scale, self.shift, found[1])
        return found[1].shown

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        call, kept, padded = self._now
        of_input = padded if wanted else None
        call.back(g, self.weight, self.scale, kept, self._of_weight, self._of_scale, self._of_shift, of_input)
        self.weight.grad, self.scale.grad, self.shift.grad = self._of_weight, self._of_scale, self._of_shift
        return None if of_input is None else call.inside(of_input)


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
    ConvBlock: _Convolution, ConvNormBlock: _NormedConvolution, FusedDense: _OwnStep, nn.Linear: _Dense,
    nn.ReLU: _ReLU, nn.Flatten: _Flatten,
}  # fmt: skip
