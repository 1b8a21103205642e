"""Does a rewritten module compute what the plain one computes? Tried on real samples before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fedbalancer.training.fast.chain import Chain
    from fedbalancer.training.fast.dense import FusedDense
    from fedbalancer.training.fast.held import Held
    from fedbalancer.training.fast.row import Row
    from fedbalancer.training.fast.words import WordLosses
    from fedbalancer.training.tensors import Loss

OUTPUTS, GRADIENTS = 1e-4, 1e-2
"""Largest difference relative to the largest value, and of the norms. Float error is far below both; but where two
values of a window are equal within it, either may be the largest, and its gradient moves to another place."""
NOISE = 1e-6
"""Share of the whole gradient that is rounding error: all that torch has for a bias whose true gradient is 0, because a
batch norm follows it."""


OTHER_GRADIENTS = "other gradients"
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)

Way = Callable[[Tensor], tuple[Tensor, Callable[[Tensor], None]]]
"""A forward pass: the outputs of a batch, and what takes their gradient back to the parameters."""


def disagreement(
    plain: nn.Module, fast: nn.Module | Chain, fused: Sequence[FusedDense], sample: Tensor, held: Sequence[Held] = ()
) -> str | None:
    """What differs between the two on this sample, None if nothing does.

    They share their parameters, which are moved a little at random for the comparison, because many start at zero, and
    are put back. Compared are the outputs, in training and (but for a chain, which only trains) in evaluation, and the
    gradients of all parameters. Gradients may differ by bad luck, where two values of a pooling window are equal within
    rounding: then both of two other places must agree.
    """
    found = _disagreement(plain, fast, fused, sample, held, 0)
    if found != OTHER_GRADIENTS:
        return found
    return next(filter(None, (_disagreement(plain, fast, fused, sample, held, place) for place in (1, 2))), None)


def _disagreement(
    plain: nn.Module, fast: nn.Module | Chain, fused: Sequence[FusedDense], sample: Tensor, held: Sequence[Held],
    place: int,
) -> str | None:  # fmt: skip
    with untouched(plain, place) as restore:
        try:
            if isinstance(fast, nn.Module):
                with torch.no_grad():
                    if not _near(_outputs(plain.eval(), sample), _outputs(fast.eval(), sample)):
                        return "other outputs"
                restore()
            way = _by_autograd(fast) if isinstance(fast, nn.Module) else _by_chain(fast)
            return _compared(plain, _by_autograd(plain), way, sample, restore, fused, held)
        except _FAILURES as error:
            return f"fails: {' '.join(str(error).split())[:200]}"


def loss_disagreement(
    plain: nn.Module, fast: nn.Module, last: WordLosses, loss: Loss, sample: Tensor, held: Sequence[Held]
) -> str | None:
    """The same of the samples' losses, which the fast module's last layer gives if it has labels; some steps do not
    count."""
    generator = torch.Generator().manual_seed(2)

    def labelled(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        last.labels = labels
        losses = _outputs(fast.train(), sample)
        if losses is not last.losses:
            raise ValueError("the model does something with the scores")
        return losses, lambda gradient: torch.autograd.backward(losses, gradient)

    def usual(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        losses = loss(_outputs(plain.train(), sample), labels)
        return losses, lambda gradient: torch.autograd.backward(losses, gradient)

    with untouched(plain) as restore:
        try:
            with torch.no_grad():
                *shape, words = _outputs(plain.train(), sample).shape
            labels = torch.randint(words, tuple(shape), generator=generator)
            labels[torch.rand(tuple(shape), generator=generator) < 0.25] = words
            restore()
            return _compared(plain, usual, labelled, sample, restore, (), held)
        except _FAILURES as error:
            return f"with its loss, fails: {' '.join(str(error).split())[:200]}"
        finally:
            last.end()


def row_disagreement(plain: nn.Module, row: Row, sample: Tensor) -> str | None:
    """The same of a row, which shows its gradients by a step of length 1: with random labels, losses and gradients."""
    labels = torch.randint(row.classes, (len(sample),), generator=torch.Generator().manual_seed(2))

    def usual(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        losses = nn.functional.cross_entropy(_outputs(plain.train(), sample), labels, reduction="none")
        return losses, lambda _: torch.autograd.backward(losses.mean())

    def by_row(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        row.begin(1.0, 0.0)
        losses = row.step(sample, labels)
        if losses is None:
            raise ValueError("the row does not take the sample")
        return losses, lambda _: None

    with untouched(plain) as restore:
        try:
            return _compared(plain, usual, by_row, sample, restore, (), ())
        except _FAILURES as error:
            return f"as a row, fails: {' '.join(str(error).split())[:200]}"


def _compared(
    plain: nn.Module, one: Way, other: Way, sample: Tensor, restore: Callable[[], None], fused: Sequence[FusedDense],
    held: Sequence[Held],
) -> str | None:  # fmt: skip
    """What differs in training between the plain module and another way."""
    parameters = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    expected, outputs = _gradients(one, (), (), parameters, sample)
    restore()
    found, same = _gradients(other, fused, held, parameters, sample)
    if not _near(outputs, same):
        return "other outputs in training"
    whole = math.hypot(*(float(gradient.norm()) for gradient, _ in expected))
    for (gradient, size), (made, _) in zip(expected, found, strict=True):
        if not float((gradient - made).norm()) <= GRADIENTS * float(gradient.norm()) + 1e-6 * size + NOISE * whole:
            return OTHER_GRADIENTS
    return None


def _near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.isfinite().all():
        return False
    return float((one - other).abs().max()) <= OUTPUTS * float(one.abs().max())


def _outputs(module: nn.Module, sample: Tensor) -> Tensor:
    outputs = module(sample.clone())
    if not isinstance(outputs, Tensor):
        raise TypeError(f"the model gives {type(outputs).__name__}, not a tensor")
    return outputs


def _by_autograd(module: nn.Module) -> Way:
    def way(sample: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        outputs = _outputs(module.train(), sample)
        return outputs, lambda gradient: torch.autograd.backward(outputs, gradient)

    return way


def _by_chain(chain: Chain) -> Way:
    return lambda sample: (torch.no_grad()(chain)(sample), torch.no_grad()(chain.backward))


def _gradients(
    way: Way, fused: Sequence[FusedDense], held: Sequence[Held], parameters: Sequence[nn.Parameter], sample: Tensor
) -> tuple[list[tuple[Tensor, float]], Tensor]:
    """Of a random weighted sum of the outputs: the gradient of every parameter and the parameter's norm; the outputs. A
    layer that steps itself shows its gradient by a step of length 1."""
    before = [parameter.detach().clone() for parameter in parameters]
    for layer in fused:
        layer.begin(1.0, 0.0)
    for own in held:
        own.begin()
    for parameter in parameters:
        parameter.grad = None
    outputs, backward = way(sample)
    backward(torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)) / outputs.numel())
    for layer in fused:
        layer.finish()
    for own in held:
        own.step(1.0)
        own.end()
    steps = [(was - now.detach()) for was, now in zip(before, parameters, strict=True)]
    made = [
        (step if parameter.grad is None else parameter.grad, float(was.norm()))
        for parameter, step, was in zip(parameters, steps, before, strict=True)
    ]
    for parameter in parameters:
        parameter.grad = None
    return made, outputs.detach()


@contextmanager
def untouched(module: nn.Module, place: int = 0) -> Iterator[Callable[[], None]]:
    """A context in which parameters and buffers of the module are moved a little and may be changed; gives a function
    that goes back to its beginning, torch's generator included. At the end all is as it was."""
    tensors = [*module.parameters(), *module.buffers()]
    state, originals = torch.get_rng_state(), [tensor.detach().clone() for tensor in tensors]
    generator = torch.Generator().manual_seed(place)
    moved = [_moved(original, generator) for original in originals]

    def write(values: Sequence[Tensor]) -> None:
        torch.set_rng_state(state)
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)

    write(moved)
    try:
        yield lambda: write(moved)
    finally:
        write(originals)


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    far = max(0.05 * float(tensor.abs().mean()), 0.01)
    return tensor + far * torch.rand(tensor.shape, generator=generator)  # never below 0: variances stay positive
