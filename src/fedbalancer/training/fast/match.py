"""Finds the layers of an `nn.Sequential` that one `ConvBlock` or `ConvNormBlock` can replace.

A block is an optional padding, a convolution, an optional batch norm, and a pooling and a ReLU in either order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedbalancer.training.fast.conv import Shape

_DIMENSIONS: dict[type[nn.Module], int] = {
    nn.Conv1d: 1, nn.ConstantPad1d: 1, nn.ZeroPad1d: 1, nn.MaxPool1d: 1,
    nn.Conv2d: 2, nn.ConstantPad2d: 2, nn.ZeroPad2d: 2, nn.MaxPool2d: 2,
}  # fmt: skip
_PADS = (nn.ConstantPad1d, nn.ZeroPad1d, nn.ConstantPad2d, nn.ZeroPad2d)
_CONVOLUTIONS, _POOLS = (nn.Conv1d, nn.Conv2d), (nn.MaxPool1d, nn.MaxPool2d)


@dataclass(frozen=True)
class Match:
    """Consecutive layers that one block can replace.

    Args:
        first: Index of the first layer.
        length: Number of layers.
        conv: Index of the convolution, relative to `first`.
        shape: Padding, pooling and ReLU.
        norm: Whether a batch norm follows the convolution.
    """

    first: int
    length: int
    conv: int
    shape: Shape
    norm: bool = False


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module does only what its class defines: no hooks, no replaced `forward`."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(module, name, None) for name in hooks) and "forward" not in vars(module)


def find_conv_blocks(layers: Sequence[nn.Module]) -> list[Match]:
    """Find all blocks with a pooling; without one every position has a gradient, and torch is faster."""
    matches = [_match(layers, number) for number in range(len(layers))]
    return [match for match in matches if match is not None and match.shape.pool != (1, 1)]


def _match(layers: Sequence[nn.Module], number: int) -> Match | None:
    conv: Any = layers[number]
    sides = _conv_padding(conv)
    if sides is None:
        return None
    before = _pad(layers[number - 1], _DIMENSIONS[type(conv)]) if number else None
    first = number if before is None else number - 1
    norm = number + 1 < len(layers) and _uses_batch_statistics(layers[number + 1])
    pool, ceil, relu, end = (1, 1), False, False, number + 1 + norm
    while end < len(layers) and is_plain(layers[end]):
        layer: Any = layers[end]
        if type(layer) is nn.ReLU and not relu:
            relu = True
        elif pool == (1, 1) and (window := _pool(layer, _DIMENSIONS[type(conv)])) is not None:
            pool, ceil = window, bool(layer.ceil_mode)
        else:
            break
        end += 1
    top, bottom, left, right = (a + b for a, b in zip(sides, before or (0, 0, 0, 0), strict=True))
    return Match(first, end - first, number - first, Shape((top, bottom, left, right), pool, ceil, relu), norm)


def _conv_padding(conv: Any) -> tuple[int, ...] | None:
    """Return (top, bottom, left, right) of a convolution that the kernel supports; None otherwise."""
    if type(conv) not in _CONVOLUTIONS or not is_plain(conv) or conv.groups != 1 or conv.padding_mode != "zeros":
        return None
    if any(value != 1 for value in (*conv.stride, *conv.dilation)):
        return None
    if not all(parameter.requires_grad for parameter in conv.parameters()):
        return None
    if conv.padding == "valid":
        return (0, 0, 0, 0)
    same = conv.padding == "same"  # an even window has one more at the end
    pairs = [((size - 1) // 2, size // 2) if same else None for size in conv.kernel_size]
    sides = [pair or (conv.padding[side],) * 2 for side, pair in enumerate(pairs)]
    return tuple(value for pair in ([(0, 0), *sides] if len(sides) == 1 else sides) for value in pair)


def _uses_batch_statistics(norm: Any) -> bool:
    """Whether this is a batch norm that uses the batch's statistics in training and in evaluation."""
    if type(norm) is not nn.BatchNorm2d or not is_plain(norm) or norm.weight is None or norm.track_running_stats:
        return False
    return norm.running_mean is None and all(parameter.requires_grad for parameter in norm.parameters())


def _pad(module: Any, dimensions: int) -> tuple[int, ...] | None:
    """Return (top, bottom, left, right) of a layer that pads with zeros."""
    if type(module) not in _PADS or _DIMENSIONS[type(module)] != dimensions or not is_plain(module):
        return None
    if module.value != 0 or min(module.padding) < 0:
        return None
    return (0, 0, *module.padding) if dimensions == 1 else (*module.padding[2:], *module.padding[:2])


def _pool(module: Any, dimensions: int) -> tuple[int, int] | None:
    """Return (rows, columns) of a max-pooling whose windows do not overlap."""
    if type(module) not in _POOLS or _DIMENSIONS[type(module)] != dimensions or module.return_indices:
        return None
    sizes, strides, padding, dilation = (
        (value,) * dimensions if isinstance(value, int) else tuple(value)
        for value in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    if sizes != strides or any(padding) or any(step != 1 for step in dilation):
        return None
    return (1, sizes[0]) if dimensions == 1 else (sizes[0], sizes[1])
