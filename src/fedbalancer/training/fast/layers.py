"""Finds the layers of a module that could run faster, their replacements, and why other layers have none."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.agreement import perturb
from fedbalancer.training.fast.conv import ConvBlock, ConvNormBlock, Shape, load_kernel
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.lstm import FastLSTM
from fedbalancer.training.fast.words import SparseEmbedding, WordLosses

CONV_BLOCK = "convolution and pooling in one kernel"
NORM_BLOCK = "convolution, batch norm and pooling in one kernel"
DENSE = "dense layer with its own step"
EMBEDDING = "embedding with gradients of the used rows"
WORDS = "dense layer together with the loss"
LSTM = "LSTM by large products"
FUSED_FROM = 2**16
"""Weights from which a layer with its own step is faster; for smaller ones the extra calls cost more."""


@dataclass(frozen=True)
class Change:
    """The faster form of one layer.

    Args:
        name: Name of the layer.
        how: The faster form in words.
        replacements: Makes the new layers by name; None removes a layer.
        also: Names of other layers with parameters whose work it does.
    """

    name: str
    how: str
    replacements: Callable[[], Mapping[str, nn.Module | None]]
    also: tuple[str, ...] = ()


def find_changes(module: nn.Module, sample: Tensor, of_words: bool = False) -> tuple[list[Change], dict[str, str]]:
    """Find the layers that could run faster.

    Args:
        module: The module.
        sample: A batch.
        of_words: Whether the loss is `masked_loss`.

    Returns:
        The possible changes, and by name why a layer cannot be changed.
    """
    changes: list[Change] = []
    why: dict[str, str] = {}
    _find_blocks(module, changes, why)
    taken = {change.name for change in changes}
    inputs = _input_dimensions(module, sample)
    for name, layer in module.named_modules():
        if name not in taken:
            change = _change_layer(name, layer, module, inputs.get(name, []), of_words)
            if isinstance(change, Change):
                changes.append(change)
            elif change is not None:
                why[name] = change
    return changes, why


def _find_blocks(module: nn.Module, changes: list[Change], why: dict[str, str]) -> None:
    """Find convolutions with their poolings in the sequences of the module."""
    for path, sequence in module.named_modules():
        if type(sequence) is not nn.Sequential or not is_plain(sequence):
            continue
        names = [f"{path}.{name}".lstrip(".") for name, _ in sequence.named_children()]
        layers = list(sequence.children())
        if len(names) != len(sequence):  # a layer occurs twice
            continue
        for match in find_conv_blocks(layers):
            name = names[match.first + match.conv]
            if load_kernel() is None:
                why[name] = f"no kernel: {kernels.why_not('conv')}"
                continue
            changes.append(_change_block(match, names, layers))


def _change_block(match: Match, names: list[str], layers: list[Any]) -> Change:
    at = match.first + match.conv
    run, conv = names[match.first : match.first + match.length], layers[at]
    if not match.norm:
        return Change(names[at], CONV_BLOCK, lambda: dict.fromkeys(run) | {names[at]: ConvBlock(conv, match.shape)})
    norm = layers[at + 1]
    replace = lambda: dict.fromkeys(run) | {names[at]: ConvNormBlock(conv, norm, match.shape)}  # noqa: E731
    return Change(names[at], NORM_BLOCK, replace, (names[at + 1],))


def _change_layer(
    name: str, layer: nn.Module, module: nn.Module, uses: list[int], of_words: bool
) -> Change | str | None:
    """Return the change of a single layer, or why there is none; `uses` are the input's dimensions at every use."""
    if type(layer) is nn.Linear:
        reason = _find_sharing(layer, module, uses)
        if reason is None and of_words and uses == [3]:
            return Change(name, WORDS, lambda: {name: WordLosses(layer)})
        if reason is None and uses != [2]:
            reason = f"its input has {uses[0]} dimensions"
        return reason or Change(name, DENSE, lambda: {name: FusedDense(layer)})
    if type(layer) is nn.Embedding:
        reason = _find_sharing(layer, module, uses) or SparseEmbedding.find_obstacle(layer)
        return reason or Change(name, EMBEDDING, lambda: {name: SparseEmbedding(layer)})
    if isinstance(layer, nn.LSTM):
        return FastLSTM.find_obstacle(layer) or Change(name, LSTM, lambda: {name: FastLSTM(layer)})
    return None


def _find_sharing(layer: nn.Linear | nn.Embedding, module: nn.Module, uses: list[int]) -> str | None:
    """Return why a layer cannot take its own step: its parameters must be unshared and used once per forward pass."""
    owners = Counter(id(parameter) for each in module.modules() for parameter in each.parameters(recurse=False))
    places = sum(other is layer for _, other in module.named_modules(remove_duplicate=False))
    if layer.weight.numel() < FUSED_FROM:
        return "it is small"
    if not is_plain(layer):
        return "it has hooks"
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        return "it is not trained"
    if places != 1 or any(owners[id(parameter)] != 1 for parameter in layer.parameters()):
        return "its parameters are shared"
    return None if len(uses) == 1 else "it is not used once in a forward pass"


def _input_dimensions(module: nn.Module, sample: Tensor) -> dict[str, list[int]]:
    """Return the dimensions of every input of each dense layer and embedding in a forward pass.

    Layers that are used differently in evaluation and in training are left out.
    """
    probe = copy_sharing(module)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for name, layer in probe.named_modules():
        if type(layer) in (nn.Linear, nn.Embedding):
            layer.register_forward_pre_hook(partial(_note, seen[name]), with_kwargs=True)
    passes = []
    with perturb(module), torch.no_grad():
        for training in (False, True):
            probe.train(training)(sample.clone())
            passes.append({name: list(dimensions) for name, dimensions in seen.items()})
            for dimensions in seen.values():
                dimensions.clear()
    evaluation, training_pass = passes
    return {name: dimensions for name, dimensions in training_pass.items() if evaluation[name] == dimensions}


def _note(dimensions: list[int], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dimensions.append((*args, *kwargs.values())[0].ndim)


def copy_sharing(module: nn.Module) -> nn.Module:
    """Copy the structure of a module, sharing its parameters and buffers."""
    shared: list[Tensor] = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


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
