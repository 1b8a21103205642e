"""Scores of many words for a few rows with their cross-entropy: by torch or by the kernel in `words.c`."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch


class Scores:
    """By torch. A pass, of at least one row, is `losses`, then `weigh`, then any of the others, `step` at last.

    With g the gradients of the weighted losses with respect to the scores, the gradient of the weights is g^T x.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._g = torch.empty(0)

    def losses(self, x: Tensor, labels: Tensor) -> Tensor:
        """Of the rows of x, each with the number of a word; the weights are then 1."""
        self.x = x
        if len(self._g) < len(x):
            self._g = self.weight.new_empty(len(x), len(self.weight))
        self.g, at = self._g[: len(x)], (torch.arange(len(x)), labels)
        torch.log_softmax(linear(x, self.weight, self.bias), 1, out=self.g)
        losses = -self.g[at]
        self.g.exp_()[at] -= 1.0
        return losses

    def weigh(self, weights: Tensor) -> None:
        """Give every row's loss this weight."""
        self.g.mul_(weights[:, None])

    def of_inputs(self) -> Tensor:
        """The gradient of x."""
        return torch.mm(self.g, self.weight)

    def most(self) -> float:
        """The square of the sum of the norms of what every row adds to the gradients: theirs are not above it."""
        sides = self.x.square().sum(dim=1, dtype=torch.float64) + (self.bias is not None)
        return float((sides.sqrt() * self.norms().double()).sum()) ** 2

    def norms(self) -> Tensor:
        """Of the rows of g."""
        norms: Tensor = torch.linalg.vector_norm(self.g, dim=1)
        return norms

    def square(self) -> float:
        """The square of the norm of the gradients of weights and bias: of g^T x and of the sum of the rows of g it is
        the sum over every two rows of (g g^T) * (x x^T + 1)."""
        both = torch.mm(self.x, self.x.t())
        if self.bias is not None:
            both += 1.0
        return float(self.products().mul_(both).sum(dtype=torch.float64))

    def products(self) -> Tensor:
        """g g^T"""
        return torch.mm(self.g, self.g.t())

    def step(self, rate: float) -> None:
        """Weights and bias minus `rate` times their gradients."""
        self.weight.addmm_(self.g.t(), self.x, alpha=-rate)
        if self.bias is not None:
            self.bias.add_(self.g.sum(dim=0), alpha=-rate)


class CompiledScores(Scores):
    """By the kernel: all contiguous float32 on the CPU, and whole vectors of the width."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: ctypes.CDLL) -> None:
        super().__init__(weight, bias)
        self._library = library
        self._shift = weight.new_zeros(len(weight)) if bias is None else bias

    def losses(self, x: Tensor, labels: Tensor) -> Tensor:
        rows, (words, width) = len(x), self.weight.shape
        if not rows or not 0 <= int(labels.min()) <= int(labels.max()) < words:
            raise IndexError(f"there is no label, or one that is not among the {words} words")
        self.x, self._pitch = x, int(self._library.words_pitch(rows))
        self._floats = int(self._library.words_floats(rows, width))
        if self._g.numel() < words * self._pitch:
            self._g = x.new_empty(words * self._pitch)
        self.g = self._g[: words * self._pitch].view(words, self._pitch)
        losses, self._scale, self._norms = x.new_empty(3, rows).unbind()
        self._library.words_forward(
            rows, width, words, pointer(x, (rows, width)), pointer(self.weight, (words, width)),
            pointer(self._shift, (words,)), pointer(labels, (rows,), torch.int64), pointer(self.g, self.g.shape),
            pointer(self._scale, (rows,)), pointer(losses, (rows,)), pointer(self._norms, (rows,)),
            scratch(self._floats),
        )  # fmt: skip
        return losses

    def weigh(self, weights: Tensor) -> None:
        self._scale *= weights
        self._norms *= weights.abs()

    def of_inputs(self) -> Tensor:
        (rows, width), made = self.x.shape, torch.empty_like(self.x)
        self._library.words_back(
            *self._sizes(), *self._gradient(), pointer(self.weight, tuple(self.weight.shape)),
            pointer(made, (rows, width)),
        )  # fmt: skip
        return made

    def norms(self) -> Tensor:
        return self._norms

    def products(self) -> Tensor:
        rows, words = len(self.x), len(self.weight)
        made = self.x.new_empty(rows, self._pitch)
        self._library.words_products(rows, words, *self._gradient(), pointer(made, (rows, self._pitch)))
        upper = made[:, :rows].triu()
        return upper + upper.triu(1).t()

    def step(self, rate: float) -> None:
        self._library.words_step(
            *self._sizes(), *self._gradient(), rate, pointer(self.x, tuple(self.x.shape)),
            pointer(self.weight, tuple(self.weight.shape)),
            None if self.bias is None else pointer(self.bias, (len(self.weight),)), scratch(self._floats),
        )  # fmt: skip

    def _sizes(self) -> tuple[int, int, int]:
        return len(self.x), self.weight.shape[1], len(self.weight)

    def _gradient(self) -> tuple[int, int]:
        shape = (len(self.weight), self._pitch)
        return pointer(self.g, shape), pointer(self._scale, (len(self.x),))


def scores_for(weight: Tensor, bias: Tensor | None) -> Scores:
    """The faster one for a matrix of this kind."""
    library = loaded() if weight.dtype == torch.float32 and weight.is_cpu and weight.is_contiguous() else None
    if library is None or weight.shape[1] % library.words_lanes():
        return Scores(weight, bias)
    return CompiledScores(weight, bias, library)


@cache
def loaded() -> Any:
    """The kernel with the types of its functions; None if there is none."""
    library = kernels.load("words")
    if library is None:
        return None
    number, address, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "words_lanes": (number, []),
        "words_pitch": (number, [number]),
        "words_floats": (number, [number] * 2),
        "words_forward": (None, [number] * 3 + [address] * 9),
        "words_back": (None, [number] * 3 + [address] * 4),
        "words_step": (None, [number] * 3 + [address] * 2 + [real] + [address] * 4),
        "words_products": (None, [number] * 2 + [address] * 3),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
