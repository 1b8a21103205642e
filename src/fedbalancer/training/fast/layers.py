"""The layers of a module that could run faster, each with what would replace it, and why the others could not."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.agree import untouched
from fedbalancer.training.fast.conv import ConvBlock, loaded
from fedbalancer.training.fast.conv_norm import ConvNormBlock
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.held import FewRows
from fedbalancer.training.fast.lstm import FastLSTM
from fedbalancer.training.fast.match import Match, conv_blocks, plain
from fedbalancer.training.fast.words import WordLosses

CONV_BLOCK = "convolution and pooling in one kernel"
NORM_BLOCK = "convolution, batch norm and pooling in one kernel"
DENSE = "dense layer with its own step"
EMBEDDING = "embedding with gradients of a few rows"
WORDS = "dense layer together with the loss"
LSTM = "LSTM by large products"
FUSED_FROM = 2**16
"""Weights from which a layer with its own step is faster; below, its extra calls cost more than they save."""


@dataclass(frozen=True)
class Change:
    """One layer's other form: `replacements` makes the layers to put at the given names; None takes a layer away.
    `also` are the names of others with parameters that it does the work of."""

    name: str
    how: str
    replacements: Callable[[], Mapping[str, nn.Module | None]]
    also: tuple[str, ...] = ()


def changes(module: nn.Module, sample: Tensor, of_words: bool = False) -> tuple[list[Change], dict[str, str]]:
    """What may be changed, and by name why a layer may not. `of_words`: whether the loss is that of `WordLosses`."""
    found: list[Change] = []
    why: dict[str, str] = {}
    _blocks(module, found, why)
    taken = {change.name for change in found}
    inputs = _inputs(module, sample)
    for name, layer in module.named_modules():
        if name not in taken:
            made = _single(name, layer, module, inputs.get(name, []), of_words)
            if isinstance(made, Change):
                found.append(made)
            elif made is not None:
                why[name] = made
    return found, why


def _blocks(module: nn.Module, found: list[Change], why: dict[str, str]) -> None:
    """Convolutions with their poolings, in the sequences of the module."""
    for path, sequence in module.named_modules():
        if type(sequence) is not nn.Sequential or not plain(sequence):
            continue
        names = [f"{path}.{name}".lstrip(".") for name, _ in sequence.named_children()]
        layers = list(sequence.children())
        if len(names) != len(sequence):  # the same layer twice
            continue
        for match in conv_blocks(layers):
            name = names[match.first + match.conv]
            if loaded() is None:
                why[name] = f"no kernel: {kernels.why_not('conv')}"
                continue
            found.append(_block(match, names, layers))


def _block(match: Match, names: list[str], layers: list[Any]) -> Change:
    at = match.first + match.conv
    run, conv = names[match.first : match.first + match.length], layers[at]
    if not match.norm:
        return Change(names[at], CONV_BLOCK, lambda: dict.fromkeys(run) | {names[at]: ConvBlock(conv, match.shape)})
    norm = layers[at + 1]
    made = lambda: dict.fromkeys(run) | {names[at]: ConvNormBlock(conv, norm, match.shape)}  # noqa: E731
    return Change(names[at], NORM_BLOCK, made, (names[at + 1],))


def _single(name: str, layer: nn.Module, module: nn.Module, uses: list[int], of_words: bool) -> Change | str | None:
    """A layer by itself, or why not; `uses` has the dimensions of its input at every use."""
    if type(layer) is nn.Linear:
        reason = _not_alone(layer, module, uses)
        if reason is None and of_words and uses == [3]:
            return Change(name, WORDS, lambda: {name: WordLosses(layer)})
        if reason is None and uses != [2]:
            reason = f"its input has {uses[0]} dimensions"
        return reason or Change(name, DENSE, lambda: {name: FusedDense(layer)})
    if type(layer) is nn.Embedding:
        reason = _not_alone(layer, module, uses) or FewRows.suits(layer)
        return reason or Change(name, EMBEDDING, lambda: {name: FewRows(layer)})
    if isinstance(layer, nn.LSTM):
        return FastLSTM.suits(layer) or Change(name, LSTM, lambda: {name: FastLSTM(layer)})
    return None


def _not_alone(layer: nn.Linear | nn.Embedding, module: nn.Module, uses: list[int]) -> str | None:
    """A layer may take its own step only if its parameters are its alone and are used once per forward pass."""
    owners = Counter(id(parameter) for each in module.modules() for parameter in each.parameters(recurse=False))
    places = sum(other is layer for _, other in module.named_modules(remove_duplicate=False))
    if layer.weight.numel() < FUSED_FROM:
        return "it is small"
    if not plain(layer):
        return "it has hooks"
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        return "it is not trained"
    if places != 1 or any(owners[id(parameter)] != 1 for parameter in layer.parameters()):
        return "its parameters are shared"
    return None if len(uses) == 1 else "it is not used once in a forward pass"


def _inputs(module: nn.Module, sample: Tensor) -> dict[str, list[int]]:
    """How many dimensions every input of every dense layer and embedding has in a forward pass; a layer that is used
    otherwise in evaluation than in training is left out."""
    probe = sharing_copy(module)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for name, layer in probe.named_modules():
        if type(layer) in (nn.Linear, nn.Embedding):
            layer.register_forward_pre_hook(partial(_note, seen[name]), with_kwargs=True)
    passes = []
    with untouched(module), torch.no_grad():
        for training in (False, True):
            probe.train(training)(sample.clone())
            passes.append({name: list(dimensions) for name, dimensions in seen.items()})
            for dimensions in seen.values():
                dimensions.clear()
    evaluation, training_pass = passes
    return {name: dimensions for name, dimensions in training_pass.items() if evaluation[name] == dimensions}


def _note(dimensions: list[int], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dimensions.append((*args, *kwargs.values())[0].ndim)


def sharing_copy(module: nn.Module) -> nn.Module:
    """The same structure with the very same parameters and buffers."""
    shared: list[Tensor] = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})
