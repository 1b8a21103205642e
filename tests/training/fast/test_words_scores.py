"""Scores, cross-entropy and step of the last layer of a language model are those of torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from fedbalancer.training.fast import kernels, words  # noqa: E402
from fedbalancer.training.fast.words import CompiledScores, Scores, make_scores  # noqa: E402

F = torch.nn.functional
needs_kernel = pytest.mark.skipif(kernels.load("words") is None, reason=f"no kernel: {kernels.why_not('words')}")
Make = Callable[[Any, Any], Scores]
KINDS = [Scores, pytest.param(lambda w, b: CompiledScores(w, b, words.load_kernel()), marks=needs_kernel)]


def near(one: Any, other: Any, share: float = 2e-6) -> bool:
    return float((one - other).abs().max()) <= share * float(other.abs().max()) + 1e-12


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("rows", "words", "width", "bias"),
    [(1, 1, 16, True), (5, 7, 32, False), (16, 300, 48, True), (33, 131, 64, True), (76, 1000, 256, True)],
)
def test_a_pass_is_that_of_torch(make: Make, rows: int, words: int, width: int, bias: bool) -> None:
    torch.manual_seed(rows)
    w, b, x = torch.randn(words, width), torch.randn(words) if bias else None, torch.randn(rows, width)
    labels, weights = torch.randint(words, (rows,)), torch.rand(rows)
    exact = [tensor.double().requires_grad_() for tensor in ((w, b, x) if bias else (w, x))]
    outputs = F.linear(exact[-1], exact[0], exact[1] if bias else None)
    expected = F.cross_entropy(outputs, labels, reduction="none")
    of = torch.autograd.grad((expected * weights).sum(), exact)
    kind = make(w, b)
    for count in (max(1, rows // 2), rows):  # the second pass is larger than what the first left
        losses = kind.losses(x[:count].contiguous(), labels[:count])
    kind.weigh(weights)
    assert near(losses, expected.detach(), 1e-5)
    assert near(kind.input_gradient(), of[-1], 1e-5)
    square = sum(float(part.square().sum()) for part in of[:-1])
    assert kind.squared_norm() == pytest.approx(square, rel=1e-4, abs=1e-12)
    assert square <= kind.squared_norm_bound() * (1 + 1e-5) + 1e-12
    before = [tensor.clone() for tensor in ((w, b) if bias else (w,))]
    kind.step(0.5)
    for now, was, gradient in zip((w, b), before, of, strict=False):
        assert float((was - now - 0.5 * gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()) + 1e-6


@pytest.mark.parametrize("make", KINDS)
def test_large_scores_lose_nothing(make: Make) -> None:
    torch.manual_seed(0)
    w, x, labels = 30 * torch.randn(50, 32), torch.randn(6, 32), torch.arange(6)
    expected = F.cross_entropy(x.double() @ w.double().t(), labels, reduction="none")
    assert float(expected.max()) > 200
    assert near(make(w, None).losses(x, labels), expected, 1e-5)


@pytest.mark.parametrize("make", KINDS)
def test_what_is_not_a_number_stays_so(make: Make) -> None:
    w, x = torch.randn(9, 16), torch.randn(3, 16)
    x[1, 4] = torch.nan
    assert make(w, None).losses(x, torch.tensor([0, 1, 2])).isfinite().tolist() == [True, False, True]


@needs_kernel
@pytest.mark.parametrize("label", [-1, 7, 2**40])
def test_a_label_that_is_no_word_is_refused(label: int) -> None:
    kind = CompiledScores(torch.randn(7, 16), None, words.load_kernel())
    with pytest.raises(IndexError, match="not among the 7 words"):
        kind.losses(torch.randn(2, 16), torch.tensor([3, label]))


@needs_kernel
def test_the_kernel_takes_only_what_it_knows() -> None:
    assert type(make_scores(torch.randn(7, 16), None)) is CompiledScores
    for other in (torch.randn(7, 13), torch.randn(7, 16).double(), torch.randn(16, 7).t()):
        assert type(make_scores(other, None)) is Scores
    kind = make_scores(torch.randn(7, 16), None)
    for x in (torch.randn(2, 15), torch.randn(2, 16).double(), torch.randn(2, 32)[:, ::2]):
        with pytest.raises(ValueError, match="a kernel needs"):
            kind.losses(x, torch.tensor([0, 1]))
