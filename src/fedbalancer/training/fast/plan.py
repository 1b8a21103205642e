"""Rewriting a module so that its layers run fast and it computes the same.

The rewritten module is a copy of the structure that shares all parameters and buffers. A layer is exchanged only if its
type is exactly one that we know, it carries no hooks and the sample batch goes through it as expected; then plain and
rewritten module are compared on that batch, outputs and gradients. What does not agree stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from fedbalancer.training.fast.agree import disagreement, loss_disagreement, row_disagreement
from fedbalancer.training.fast.chain import Chain, chain_of, layers_of
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.held import FewRows, Held
from fedbalancer.training.fast.layers import Change, changes, sharing_copy
from fedbalancer.training.fast.row import Row, row_of
from fedbalancer.training.fast.words import WordLosses
from fedbalancer.training.losses import masked_loss

TORCH = "torch"


@dataclass(frozen=True)
class Layer:
    """How a layer with parameters runs: its name and type, in words, and why not otherwise."""

    name: str
    kind: str
    how: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'model'} ({self.kind}): {self.how}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True, eq=False)
class FastPlan:
    """A module that computes what the given one computes, and what became of every layer with parameters. `chain`
    trains the same module without autograd, if it is a plain row of layers; `row` does a whole step of it at once, if
    they are small and the loss is the cross-entropy."""

    module: nn.Module
    layers: tuple[Layer, ...] = ()
    chain: Chain | None = None
    row: Row | None = None

    @cached_property
    def fused(self) -> tuple[FusedDense, ...]:
        """The dense layers that take their own steps."""
        return tuple(layer for layer in self.module.modules() if isinstance(layer, FusedDense))

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """The layers that hold their gradients until the step."""
        return tuple(layer for layer in self.module.modules() if isinstance(layer, FewRows | WordLosses))

    @cached_property
    def losses(self) -> WordLosses | None:
        """The last layer, if it gives the losses when it is told the labels."""
        return next((layer for layer in self.module.modules() if isinstance(layer, WordLosses)), None)


def fast_module(module: nn.Module, sample: Tensor, loss: object = None) -> FastPlan:
    """The fastest form of the module that we can vouch for; at worst the module itself.

    >>> import torch
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 128))
    >>> [layer.how for layer in fast_module(net, torch.rand(4, 32, 32)).layers]
    ['dense layer with its own step']
    """
    try:
        wanted, why = changes(module, sample, loss is masked_loss)
        made = _kept_changes(module, sample, wanted, why)
    except Exception as error:  # whatever a user's model does when it is copied or tried: it stays plain
        reason = f"cannot be rewritten: {' '.join(str(error).split())[:200]}"
        made, why = [], {name: reason for name, _ in module.named_modules()}
    plan = _rewritten(module, made) if made else FastPlan(module)
    chain = chain_of(plan.module)
    if chain is not None and disagreement(module, chain, plan.fused, sample) is not None:
        chain = None
    row = row_of(layers_of(plan.module), sample) if chain is not None and loss == "cross_entropy" else None
    if row is not None and row_disagreement(module, row, sample) is not None:
        row = None
    return replace(plan, layers=tuple(_layers(module, made, why)), chain=chain, row=row)


def _kept_changes(module: nn.Module, sample: Tensor, wanted: list[Change], why: dict[str, str]) -> list[Change]:
    """All changes if the result agrees with the plain module, else those that agree alone, if they do together."""
    if not wanted or _wrong(module, wanted, sample) is None:
        return wanted
    kept = []
    for change in wanted:
        wrong = _wrong(module, [change], sample)
        if wrong is None:
            kept.append(change)
        else:
            why[change.name] = f"as a {change.how}: {wrong}"
    together = _wrong(module, kept, sample) if kept else None
    if together is not None:
        why.update({change.name: f"together: {together}" for change in kept})
    return kept if together is None else []


def _wrong(module: nn.Module, made: Sequence[Change], sample: Tensor) -> str | None:
    plan = _rewritten(module, made)
    found = disagreement(module, plan.module, plan.fused, sample, plan.held)
    if found is None and plan.losses is not None:
        return loss_disagreement(module, plan.module, plan.losses, masked_loss, sample, plan.held)
    return found


def _rewritten(module: nn.Module, made: Sequence[Change]) -> FastPlan:
    """A copy with the changes made."""
    root = nn.Module()
    root.add_module("root", sharing_copy(module))
    for change in made:
        for name, layer in change.replacements().items():
            path, _, last = f"root.{name}".rstrip(".").rpartition(".")
            if layer is None:
                delattr(root.get_submodule(path), last)
            else:
                setattr(root.get_submodule(path), last, layer)
    return FastPlan(root.get_submodule("root"))


def _layers(module: nn.Module, made: Sequence[Change], why: dict[str, str]) -> list[Layer]:
    how = {name: change.how for change in made for name in (change.name, *change.also)}
    return [
        Layer(name, type(layer).__name__, how.get(name, TORCH), "" if name in how else why.get(name, ""))
        for name, layer in module.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
    ]
