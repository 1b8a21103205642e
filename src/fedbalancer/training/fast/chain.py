"""Training a plain sequence of layers without autograd.

With batches of ten, torch's overhead around a kernel (a graph node, its saved tensors, new memory) costs up to a
quarter of a step. If the model is a plain sequence of supported layers, each layer here computes its forward and
backward pass itself, in memory that it keeps. Any other model is left to autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedbalancer.training.fast.conv import Call, ConvBlock, ConvNormBlock, NormBuffers, NormCall
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.layers import is_plain


class ChannelsLast(nn.Module):
    """Converts images to torch's channels-last memory format, which its convolutions preserve."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the converted images."""
        return x.contiguous(memory_format=torch.channels_last)


class Link(Protocol):
    """One layer of a chain, called without gradients: forward, then backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        """Set the `grad` of the parameters, unless the layer takes its own step.

        Args:
            g: The gradient of the outputs.
            wanted: Whether to return the gradient of the input.
        """


class Chain:
    """Layers that are called one after the other.

    Args:
        links: The layers.
    """

    def __init__(self, links: list[Link]) -> None:
        self.links = links

    def __call__(self, x: Tensor) -> Tensor:
        for link in self.links:
            x = link.forward(x)
        return x

    def backward(self, g: Tensor) -> None:
        """Run the backward pass with the gradient of the outputs of the last call."""
        first = self.links[0]
        for link in reversed(self.links):
            gradient = link.backward(g, wanted=link is not first)
            if gradient is not None:
                g = gradient


def make_chain(module: nn.Module) -> Chain | None:
    """Make a chain of a module; None unless it is a sequence of supported layers, each used once."""
    layers = list_layers(module)
    kinds = [_KINDS.get(type(layer)) for layer in layers]
    if not layers or len(set(map(id, layers))) < len(layers) or None in kinds:
        return None
    if not all(is_plain(layer) for layer in layers) or not all(p.requires_grad for p in module.parameters()):
        return None
    return Chain([kind(layer) for kind, layer in zip(kinds, layers, strict=True) if kind is not None])


def list_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a plain sequence, or else the module itself."""
    return list(_leaves(module))


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and is_plain(module):
        for child in module:
            yield from _leaves(child)
    elif type(module) is ChannelsLast and is_plain(module):
        return  # links accept any memory layout
    else:
        yield module


class _Convolution:
    def __init__(self, layer: ConvBlock) -> None:
        self.layer = layer
        self._kept: dict[torch.Size, _ConvBuffers] = {}

    def forward(self, x: Tensor) -> Tensor:
        kept = self._kept.get(x.shape)
        if kept is None:
            kept = self._kept[x.shape] = _ConvBuffers(self.layer.call_for(x.shape), self.layer)
        self._now = kept
        kept.call.forward(x, kept.weight, kept.shift, kept.padded, kept.outputs, kept.places)
        return kept.shown

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        kept = self._now
        input_grad = kept.input_grad if wanted else None
        kept.call.backward(g, kept.places, kept.padded, kept.weight, kept.weight_grad, kept.bias_grad, input_grad)
        self.layer.weight.grad = kept.weight_grad
        if self.layer.bias is not None:
            self.layer.bias.grad = kept.bias_grad
        return None if input_grad is None else kept.call.crop(input_grad)


class _ConvBuffers:
    """The buffers of a convolution for one shape of input."""

    def __init__(self, call: Call, layer: ConvBlock) -> None:
        self.call, self.weight = call, layer.weight.detach()
        self.shift = self.weight.new_zeros(len(self.weight)) if layer.bias is None else layer.bias.detach()
        self.outputs, self.places = torch.empty(call.outputs), torch.empty(call.outputs, dtype=torch.int32)
        self.shown = self.outputs.movedim(-1, 1)
        self.padded, self.input_grad = torch.empty(call.padded), torch.empty(call.padded)
        self.weight_grad, self.bias_grad = torch.empty_like(self.weight), torch.empty_like(self.shift)


class _NormedConvolution:
    def __init__(self, layer: ConvNormBlock) -> None:
        self.weight, self.scale, self.shift = layer.weight, layer.scale, layer.shift
        self.layer = layer
        self._weight_grad, self._scale_grad, self._shift_grad = (
            torch.empty_like(parameter.detach()) for parameter in (layer.weight, layer.scale, layer.shift)
        )
        self._kept: dict[torch.Size, tuple[NormCall, NormBuffers, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        kept = self._kept.get(x.shape)
        if kept is None:
            call = self.layer.call_for(x.shape)
            kept = self._kept[x.shape] = (call, NormBuffers(call), torch.empty(call.padded))
        self._now = kept
        kept[0].norm_forward(x, self.weight, self.scale, self.shift, kept[1])
        return kept[1].shown

    def backward(self, g: Tensor, wanted: bool) -> Tensor | None:
        call, kept, padded = self._now
        input_grad = padded if wanted else None
        grads = self._weight_grad, self._scale_grad, self._shift_grad
        call.norm_backward(g, self.weight, self.scale, kept, *grads, input_grad)
        self.weight.grad, self.scale.grad, self.shift.grad = grads
        return None if input_grad is None else call.crop(input_grad)


class _OwnStep:
    def __init__(self, layer: FusedDense) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self._x = x.contiguous()
        return self.layer.forward_before_step(self._x)

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
