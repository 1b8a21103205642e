"""Rewrites a module so that its layers run fast and it computes the same.

The rewritten module is a copy that shares all parameters and buffers. A layer is replaced only if its type is exactly
a supported one, it has no hooks, and a sample batch passes through it as expected. Then the outputs and gradients of
both modules are compared on that batch. Layers that do not agree are not replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from fedbalancer.training.fast.agreement import find_difference, find_loss_difference, find_row_difference
from fedbalancer.training.fast.chain import Chain, list_layers, make_chain
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.layers import Change, copy_sharing, find_changes
from fedbalancer.training.fast.row import Row, make_row
from fedbalancer.training.fast.words import HoldsGradient, SparseEmbedding, WordLosses
from fedbalancer.training.tensors import masked_loss

TORCH = "torch"


@dataclass(frozen=True)
class Layer:
    """The way a layer with parameters runs.

    Args:
        name: Name of the layer.
        kind: Type of the layer.
        how: How it runs, in words.
        why: Why it does not run faster.
    """

    name: str
    kind: str
    how: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'model'} ({self.kind}): {self.how}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True, eq=False)
class FastPlan:
    """A rewritten module, and how each of its layers runs.

    Args:
        module: The rewritten module.
        layers: How each layer with parameters runs.
        chain: Trains the module without autograd, if it is a plain sequence of layers.
        row: Computes a whole step at once, if the layers are small and the loss is the cross-entropy.
    """

    module: nn.Module
    layers: tuple[Layer, ...] = ()
    chain: Chain | None = None
    row: Row | None = None

    @cached_property
    def fused(self) -> tuple[FusedDense, ...]:
        """The dense layers that take their own steps."""
        return tuple(layer for layer in self.module.modules() if isinstance(layer, FusedDense))

    @cached_property
    def held(self) -> tuple[HoldsGradient, ...]:
        """The layers that hold their gradients until the step."""
        return tuple(layer for layer in self.module.modules() if isinstance(layer, SparseEmbedding | WordLosses))

    @cached_property
    def losses(self) -> WordLosses | None:
        """The last layer, if it computes the losses itself."""
        return next((layer for layer in self.module.modules() if isinstance(layer, WordLosses)), None)


def make_plan(module: nn.Module, sample: Tensor, loss: object = None) -> FastPlan:
    """Find the fastest form of a module that agrees with it; at worst the module itself.

    Args:
        module: The module.
        sample: A batch of features on which layers are tried.
        loss: The task's loss.

    >>> import torch
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 128))
    >>> [layer.how for layer in make_plan(net, torch.rand(4, 32, 32)).layers]
    ['dense layer with its own step']
    """
    try:
        wanted, why = find_changes(module, sample, loss is masked_loss)
        changes = _select_changes(module, sample, wanted, why)
    except Exception as error:  # a user's model may raise anything when it is copied or tried
        reason = f"cannot be rewritten: {' '.join(str(error).split())[:200]}"
        changes, why = [], {name: reason for name, _ in module.named_modules()}
    plan = _rewrite(module, changes) if changes else FastPlan(module)
    chain = make_chain(plan.module)
    if chain is not None and find_difference(module, chain, plan.fused, sample) is not None:
        chain = None
    row = make_row(list_layers(plan.module), sample) if chain is not None and loss == "cross_entropy" else None
    if row is not None and find_row_difference(module, row, sample) is not None:
        row = None
    return replace(plan, layers=tuple(_describe_layers(module, changes, why)), chain=chain, row=row)


def _select_changes(module: nn.Module, sample: Tensor, wanted: list[Change], why: dict[str, str]) -> list[Change]:
    """Return all changes if the result agrees with the plain module, else those that agree alone and together."""
    if not wanted or _check_changes(module, wanted, sample) is None:
        return wanted
    kept = []
    for change in wanted:
        difference = _check_changes(module, [change], sample)
        if difference is None:
            kept.append(change)
        else:
            why[change.name] = f"as a {change.how}: {difference}"
    together = _check_changes(module, kept, sample) if kept else None
    if together is not None:
        why.update({change.name: f"together: {together}" for change in kept})
    return kept if together is None else []


def _check_changes(module: nn.Module, changes: Sequence[Change], sample: Tensor) -> str | None:
    """Return how the changed module differs from the plain one; None if it does not."""
    plan = _rewrite(module, changes)
    difference = find_difference(module, plan.module, plan.fused, sample, plan.held)
    if difference is None and plan.losses is not None:
        return find_loss_difference(module, plan.module, plan.losses, masked_loss, sample, plan.held)
    return difference


def _rewrite(module: nn.Module, changes: Sequence[Change]) -> FastPlan:
    """Copy the module with the changes applied."""
    root = nn.Module()
    root.add_module("root", copy_sharing(module))
    for change in changes:
        for name, layer in change.replacements().items():
            path, _, last = f"root.{name}".rstrip(".").rpartition(".")
            if layer is None:
                delattr(root.get_submodule(path), last)
            else:
                setattr(root.get_submodule(path), last, layer)
    return FastPlan(root.get_submodule("root"))


def _describe_layers(module: nn.Module, changes: Sequence[Change], why: dict[str, str]) -> list[Layer]:
    how = {name: change.how for change in changes for name in (change.name, *change.also)}
    return [
        Layer(name, type(layer).__name__, how.get(name, TORCH), "" if name in how else why.get(name, ""))
        for name, layer in module.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
    ]
