"""The layers of a language model that hold their gradients as factors: the embedding and the output layer.

A language model with many words spends much of a step on gradients that are written, read, scaled and read again. Only
the embedding rows of the batch's tokens have a gradient. That of the last dense layer is as large as its weights, but a
product of few rows. Here neither gradient is formed: its norm comes from the factors, and once the clipping is known,
the step goes straight into the weights. The output layer uses the kernel in `words.c`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding as plain_embedding
from torch.nn.functional import linear

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch


class HoldsGradient(Protocol):
    """A layer that holds its gradient between `begin` and `end`; at most one `step` follows each backward pass."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters."""

    def begin(self) -> None:
        """Begin a training."""

    def end(self) -> None:
        """End the training and discard a held gradient."""

    def squared_norm_bound(self) -> float:
        """Return an upper bound of `squared_norm` that is fast to compute."""

    def squared_norm(self) -> float:
        """Return the squared norm of the gradients of the last backward pass."""

    def step(self, rate: float) -> None:
        """Subtract `rate` times the gradient from every parameter."""


class SparseEmbedding(nn.Module):
    """An `nn.Embedding` that holds the gradient of the batch's rows only.

    Args:
        layer: The embedding, whose parameter is shared.

    >>> layer = SparseEmbedding(nn.Embedding(5, 2))
    >>> before = layer.weight.detach().clone()
    >>> layer.begin()
    >>> layer(torch.tensor([1, 3, 3])).sum().backward()
    >>> layer.squared_norm()
    10.0
    >>> layer.step(0.5)
    >>> (before - layer.weight).sum(dim=1).round().tolist()
    [0.0, 1.0, 0.0, 2.0, 0.0]
    """

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__()
        self.weight = layer.weight
        self._begun = False
        self._held: tuple[Tensor, Tensor] | None = None
        self._anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass

    @staticmethod
    def find_obstacle(layer: nn.Embedding) -> str | None:
        """Return why this layer cannot be replaced; None if it can."""
        reasons = {
            "it has padding_idx": layer.padding_idx is not None,
            "it has max_norm": layer.max_norm is not None,
            "its gradients are scaled or sparse": layer.scale_grad_by_freq or layer.sparse,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def begin(self) -> None:
        """Begin a training."""
        self._begun, self._held = True, None

    def end(self) -> None:
        """End the training and discard a held gradient."""
        self._begun, self._held = False, None

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of the tokens."""
        if not (self._begun and torch.is_grad_enabled()):
            return plain_embedding(x, self.weight)
        if self._held is not None:
            raise RuntimeError("an embedding that holds its gradient was used twice before a step")
        rows: Tensor = _Rows.apply(x, self._anchor, self)  # type: ignore[no-untyped-call]
        return rows

    def hold(self, x: Tensor, gradient: Tensor) -> None:
        """Hold the gradient of these tokens' rows; the gradients of equal tokens are added."""
        tokens, places = torch.unique(x, return_inverse=True)
        rows = gradient.new_zeros(len(tokens), gradient.shape[-1])
        rows.index_add_(0, places.flatten(), gradient.flatten(0, -2))
        self._held = tokens, rows

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient."""
        return 0.0 if self._held is None else float(self._held[1].square().sum(dtype=torch.float64))

    squared_norm_bound = squared_norm

    def step(self, rate: float) -> None:
        """Subtract `rate` times the gradient."""
        if self._held is not None:
            self.weight.detach().index_add_(0, *self._held, alpha=-rate)
        self._held = None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: SparseEmbedding) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return plain_embedding(x, layer.weight.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.layer.hold(ctx.saved_tensors[0], gradient)
        return None, None, None


class Scores:
    """Scores of all words for a few rows, and their cross-entropy, computed by torch.

    A pass of at least one row calls `losses`, then `weigh`, then any of the other methods, with `step` last. If g is
    the gradient of the weighted losses with respect to the scores, the gradient of the weights is g^T x.

    Args:
        weight: The weights of shape (words, width).
        bias: The bias, if there is one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._g = torch.empty(0)

    def losses(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every row of `x`, each with the number of a word as its label."""
        self.x = x
        if len(self._g) < len(x):
            self._g = self.weight.new_empty(len(x), len(self.weight))
        self.g, at = self._g[: len(x)], (torch.arange(len(x)), labels)
        torch.log_softmax(linear(x, self.weight, self.bias), 1, out=self.g)
        losses = -self.g[at]
        self.g.exp_()[at] -= 1.0
        return losses

    def weigh(self, weights: Tensor) -> None:
        """Multiply each row's loss by a weight."""
        self.g.mul_(weights[:, None])

    def input_gradient(self) -> Tensor:
        """Return the gradient of `x`."""
        return torch.mm(self.g, self.weight)

    def squared_norm_bound(self) -> float:
        """Return the square of the summed norms of the rows' gradients, an upper bound of `squared_norm`."""
        sides = self.x.square().sum(dim=1, dtype=torch.float64) + (self.bias is not None)
        return float((sides.sqrt() * self.norms().double()).sum()) ** 2

    def norms(self) -> Tensor:
        """Return the norms of the rows of g."""
        norms: Tensor = torch.linalg.vector_norm(self.g, dim=1)
        return norms

    def squared_norm(self) -> float:
        """Return the squared norm of the gradients of weights and bias.

        The gradients are g^T x and the sum of the rows of g, so it is the sum of (g g^T) * (x x^T + 1) over all pairs
        of rows.
        """
        both = torch.mm(self.x, self.x.t())
        if self.bias is not None:
            both += 1.0
        return float(self.products().mul_(both).sum(dtype=torch.float64))

    def products(self) -> Tensor:
        """Return g g^T."""
        return torch.mm(self.g, self.g.t())

    def step(self, rate: float) -> None:
        """Subtract `rate` times the gradients from weights and bias."""
        self.weight.addmm_(self.g.t(), self.x, alpha=-rate)
        if self.bias is not None:
            self.bias.add_(self.g.sum(dim=0), alpha=-rate)


class CompiledScores(Scores):
    """The same by the kernel.

    Tensors must be contiguous float32 on the CPU, and the width a multiple of the vector width.

    Args:
        weight: The weights of shape (words, width).
        bias: The bias, if there is one.
        library: The kernel.
    """

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

    def input_gradient(self) -> Tensor:
        (rows, width), gradient = self.x.shape, torch.empty_like(self.x)
        self._library.words_back(
            *self._sizes(), *self._gradient(), pointer(self.weight, tuple(self.weight.shape)),
            pointer(gradient, (rows, width)),
        )  # fmt: skip
        return gradient

    def norms(self) -> Tensor:
        return self._norms

    def products(self) -> Tensor:
        rows, words = len(self.x), len(self.weight)
        products = self.x.new_empty(rows, self._pitch)
        self._library.words_products(rows, words, *self._gradient(), pointer(products, (rows, self._pitch)))
        upper = products[:, :rows].triu()
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


def make_scores(weight: Tensor, bias: Tensor | None) -> Scores:
    """Return the fastest scores for a matrix like this."""
    library = load_kernel() if weight.dtype == torch.float32 and weight.is_cpu and weight.is_contiguous() else None
    if library is None or weight.shape[1] % library.words_lanes():
        return Scores(weight, bias)
    return CompiledScores(weight, bias, library)


@cache
def load_kernel() -> Any:
    """Load the kernel and declare the types of its functions; None if there is no kernel."""
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


class WordLosses(nn.Module):
    """The last dense layer of a language model together with its loss, `masked_loss`.

    Without `labels` it is a plain dense layer. With labels of shape (samples, steps) it returns the samples' losses
    instead of the scores. Nothing is computed for masked steps. After a backward pass it holds its gradient.

    Args:
        layer: The dense layer, whose parameters are shared.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.labels: Tensor | None = None
        self.losses: Tensor | None = None
        self.scores: Scores | None = None
        self._holds = False
        self._anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass

    def begin(self) -> None:
        """Begin a training."""
        self.labels = self.losses = None
        self._holds = False
        bias = None if self.bias is None else self.bias.detach()
        if self.scores is None or not self.scores.weight.is_set_to(self.weight):
            self.scores = make_scores(self.weight.detach(), bias)

    def end(self) -> None:
        """End the training and discard a held gradient."""
        self.labels = self.losses = None
        self._holds = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores or, with labels, the losses."""
        if self.labels is None:
            return linear(x, self.weight, self.bias)
        if self.losses is not None or x.shape[:-1] != self.labels.shape or self.labels.ndim != 2:
            raise RuntimeError("a dense layer with its loss was used twice, or not once for every label")
        losses: Tensor = _Losses.apply(x, self._anchor, self, self.labels, self.scores)  # type: ignore[no-untyped-call]
        self.losses = losses
        return losses

    def hold(self) -> None:
        """Note that there is a gradient."""
        self._holds = True

    def squared_norm_bound(self) -> float:
        """Return an upper bound of `squared_norm`."""
        return self.scores.squared_norm_bound() if self._holds and self.scores is not None else 0.0

    def squared_norm(self) -> float:
        """Return the squared norm of the gradients."""
        return self.scores.squared_norm() if self._holds and self.scores is not None else 0.0

    def step(self, rate: float) -> None:
        """Subtract `rate` times the gradients."""
        if self._holds and self.scores is not None:
            self.scores.step(rate)
        self.end()


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: WordLosses, labels: Tensor, scores: Scores) -> Tensor:
        flat = labels.flatten()
        count = (flat != len(layer.weight)).nonzero().flatten()
        losses = x.new_zeros(len(flat))
        if len(count):
            losses[count] = scores.losses(x.reshape(-1, x.shape[-1])[count], flat[count])
        ctx.save_for_backward(count)
        ctx.layer, ctx.scores, ctx.shape = layer, scores, x.shape
        return losses.view(labels.shape).mean(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (count,) = ctx.saved_tensors
        steps, scores = ctx.shape[1], ctx.scores
        x_grad = gradient.new_zeros(ctx.shape) if ctx.needs_input_grad[0] else None
        if len(count):
            scores.weigh(gradient[count // steps] / steps)
            ctx.layer.hold()
            if x_grad is not None:
                x_grad.view(-1, ctx.shape[-1])[count] = scores.input_gradient()
        return x_grad, None, None, None, None
