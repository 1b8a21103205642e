"""Compares a rewritten module with the plain one on real samples, before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fedbalancer.training.fast.chain import Chain
    from fedbalancer.training.fast.dense import FusedDense
    from fedbalancer.training.fast.row import Row
    from fedbalancer.training.fast.words import HoldsGradient, WordLosses
    from fedbalancer.training.tensors import Loss

OUTPUTS, GRADIENTS = 1e-4, 1e-2
"""Maximum relative difference of outputs, and of the norms of gradients.

Float error is far below both. But if two values of a pooling window are nearly equal, either may be the largest, and
its gradient moves to another position.
"""
NOISE = 1e-6
"""Share of the whole gradient that is rounding error, such as torch's gradient of a bias before a batch norm."""

GRADIENTS_DIFFER = "other gradients"
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)

Pass = Callable[[Tensor], tuple[Tensor, Callable[[Tensor], None]]]
"""A forward pass that returns the outputs of a batch and the function that runs the backward pass."""


def find_difference(
    plain: nn.Module,
    fast: nn.Module | Chain,
    fused: Sequence[FusedDense],
    sample: Tensor,
    held: Sequence[HoldsGradient] = (),
) -> str | None:
    """Find a difference between two modules on a sample.

    The modules share their parameters. These are perturbed for the comparison, because many start at zero, and restored
    afterwards. Outputs are compared in training and, except for a chain, in evaluation; gradients are compared for all
    parameters. Gradients may differ by chance if two values of a pooling window are nearly equal. In that case two
    other perturbations must both agree.

    Args:
        plain: The plain module.
        fast: The rewritten module, or a chain.
        fused: Its dense layers that take their own steps.
        sample: A batch.
        held: Its layers that hold their gradients.

    Returns:
        The difference in words; None if there is none.
    """
    difference = _find_difference(plain, fast, fused, sample, held, 0)
    if difference != GRADIENTS_DIFFER:
        return difference
    return next(filter(None, (_find_difference(plain, fast, fused, sample, held, seed) for seed in (1, 2))), None)


def _find_difference(
    plain: nn.Module,
    fast: nn.Module | Chain,
    fused: Sequence[FusedDense],
    sample: Tensor,
    held: Sequence[HoldsGradient],
    seed: int,
) -> str | None:
    with perturb(plain, seed) as restore:
        try:
            if isinstance(fast, nn.Module):
                with torch.no_grad():
                    if not _is_near(_outputs(plain.eval(), sample), _outputs(fast.eval(), sample)):
                        return "other outputs"
                restore()
            fast_pass = _by_autograd(fast) if isinstance(fast, nn.Module) else _by_chain(fast)
            return _compare(plain, _by_autograd(plain), fast_pass, sample, restore, fused, held)
        except _FAILURES as error:
            return f"fails: {' '.join(str(error).split())[:200]}"


def find_loss_difference(
    plain: nn.Module, fast: nn.Module, last: WordLosses, loss: Loss, sample: Tensor, held: Sequence[HoldsGradient]
) -> str | None:
    """Find a difference between the losses of two modules, with random labels of which some are masked.

    Args:
        plain: The plain module.
        fast: The rewritten module.
        last: Its last layer, which computes the losses.
        loss: The task's loss.
        sample: A batch.
        held: Its layers that hold their gradients.

    Returns:
        The difference in words; None if there is none.
    """
    generator = torch.Generator().manual_seed(2)

    def run_fast(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        last.labels = labels
        losses = _outputs(fast.train(), sample)
        if losses is not last.losses:
            raise ValueError("the model changes the scores")
        return losses, lambda gradient: torch.autograd.backward(losses, gradient)

    def run_plain(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        losses = loss(_outputs(plain.train(), sample), labels)
        return losses, lambda gradient: torch.autograd.backward(losses, gradient)

    with perturb(plain) as restore:
        try:
            with torch.no_grad():
                *shape, words = _outputs(plain.train(), sample).shape
            labels = torch.randint(words, tuple(shape), generator=generator)
            labels[torch.rand(tuple(shape), generator=generator) < 0.25] = words
            restore()
            return _compare(plain, run_plain, run_fast, sample, restore, (), held)
        except _FAILURES as error:
            return f"with its loss, fails: {' '.join(str(error).split())[:200]}"
        finally:
            last.end()


def find_row_difference(plain: nn.Module, row: Row, sample: Tensor) -> str | None:
    """Find a difference between a module and a row, with random labels.

    Args:
        plain: The plain module.
        row: The row; its gradients are seen by a step with learning rate 1.
        sample: A batch.

    Returns:
        The difference in words; None if there is none.
    """
    labels = torch.randint(row.classes, (len(sample),), generator=torch.Generator().manual_seed(2))

    def run_plain(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        losses = nn.functional.cross_entropy(_outputs(plain.train(), sample), labels, reduction="none")
        return losses, lambda _: torch.autograd.backward(losses.mean())

    def by_row(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        row.begin(1.0, 0.0)
        losses = row.step(sample, labels)
        if losses is None:
            raise ValueError("the row does not accept the sample")
        return losses, lambda _: None

    with perturb(plain) as restore:
        try:
            return _compare(plain, run_plain, by_row, sample, restore, (), ())
        except _FAILURES as error:
            return f"as a row, fails: {' '.join(str(error).split())[:200]}"


def _compare(
    plain: nn.Module, one: Pass, other: Pass, sample: Tensor, restore: Callable[[], None], fused: Sequence[FusedDense],
    held: Sequence[HoldsGradient],
) -> str | None:  # fmt: skip
    """Compare the losses and gradients of two passes in training."""
    parameters = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    expected, outputs = _gradients(one, (), (), parameters, sample)
    restore()
    actual, other_outputs = _gradients(other, fused, held, parameters, sample)
    if not _is_near(outputs, other_outputs):
        return "other outputs in training"
    whole = math.hypot(*(float(gradient.norm()) for gradient, _ in expected))
    for (gradient, size), (other_gradient, _) in zip(expected, actual, strict=True):
        if (
            not float((gradient - other_gradient).norm())
            <= GRADIENTS * float(gradient.norm()) + 1e-6 * size + NOISE * whole
        ):
            return GRADIENTS_DIFFER
    return None


def _is_near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.isfinite().all():
        return False
    return float((one - other).abs().max()) <= OUTPUTS * float(one.abs().max())


def _outputs(module: nn.Module, sample: Tensor) -> Tensor:
    outputs = module(sample.clone())
    if not isinstance(outputs, Tensor):
        raise TypeError(f"the model returns {type(outputs).__name__}, not a tensor")
    return outputs


def _by_autograd(module: nn.Module) -> Pass:
    def run(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        outputs = _outputs(module.train(), sample)
        return outputs, lambda gradient: torch.autograd.backward(outputs, gradient)

    return run


def _by_chain(chain: Chain) -> Pass:
    return lambda sample: (torch.no_grad()(chain)(sample), torch.no_grad()(chain.backward))


def _gradients(
    run: Pass,
    fused: Sequence[FusedDense],
    held: Sequence[HoldsGradient],
    parameters: Sequence[nn.Parameter],
    sample: Tensor,
) -> tuple[list[tuple[Tensor, float]], Tensor]:
    """Return the gradient of every parameter with its norm, for a random weighted sum of the outputs; and the outputs.

    The gradient of a layer that takes its own steps is seen by a step with learning rate 1.
    """
    before = [parameter.detach().clone() for parameter in parameters]
    for layer in fused:
        layer.begin(1.0, 0.0)
    for own in held:
        own.begin()
    for parameter in parameters:
        parameter.grad = None
    outputs, backward = run(sample)
    backward(torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)) / outputs.numel())
    for layer in fused:
        layer.finish()
    for own in held:
        own.step(1.0)
        own.end()
    gradients = []
    for parameter in parameters:
        was = before.pop(0)  # large models: no copy is kept longer than needed
        norm = float(was.norm())
        gradients.append((was.sub_(parameter.detach()) if parameter.grad is None else parameter.grad, norm))
        parameter.grad = None
    return gradients, outputs.detach()


@contextmanager
def perturb(module: nn.Module, seed: int = 0) -> Iterator[Callable[[], None]]:
    """A context in which parameters and buffers are moved a little and may be changed; on exit they are restored.

    Args:
        module: The module.
        seed: Seed of the perturbation.

    Yields:
        A function that goes back to the beginning of the context, including torch's random generator.
    """
    tensors = [*module.parameters(), *module.buffers()]
    state, originals = torch.get_rng_state(), [tensor.detach().clone() for tensor in tensors]

    def write(values: Iterable[Tensor]) -> None:
        torch.set_rng_state(state)
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)

    def write_moved() -> None:
        generator = torch.Generator().manual_seed(seed)  # again each time: another copy of the model would stay
        write(_move(original, generator) for original in originals)

    write_moved()
    try:
        yield write_moved
    finally:
        write(originals)


def _move(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    far = max(0.05 * float(tensor.abs().mean()), 0.01)
    return tensor + far * torch.rand(tensor.shape, generator=generator)  # never negative: variances stay positive
