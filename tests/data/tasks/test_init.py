"""Models begin as TensorFlow's do by default."""

from __future__ import annotations

import math

import pytest

from fedbalancer.data.tasks.layers import init_glorot

torch = pytest.importorskip("torch", reason="models need the extra [torch]")


@pytest.mark.parametrize(
    ("make", "fans"),
    [
        (lambda nn: nn.Linear(300, 100), 300 + 100),
        (lambda nn: nn.Conv2d(8, 16, 5), (8 + 16) * 25),
        (lambda nn: nn.Conv1d(9, 192, 16), (9 + 192) * 16),
    ],
)
def test_weights_are_uniform_within_the_glorot_limit_and_biases_zero(make: object, fans: int) -> None:
    torch.manual_seed(0)
    layer = init_glorot(make(torch.nn))  # type: ignore[operator]
    limit = math.sqrt(6 / fans)
    assert limit * 0.98 < layer.weight.abs().max() <= limit
    assert float(layer.weight.detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert not layer.bias.any()


def test_embeddings_are_uniform_within_their_own_range() -> None:
    torch.manual_seed(0)
    assert 0.049 < init_glorot(torch.nn.Embedding(80, 80)).weight.abs().max() <= 0.05
    assert 0.098 < init_glorot(torch.nn.Embedding(80, 80), embedding_range=0.1).weight.abs().max() <= 0.1


def test_it_reaches_into_nested_layers_and_returns_the_same_module() -> None:
    inner = torch.nn.Linear(3, 2, bias=False)
    outer = torch.nn.Sequential(torch.nn.Sequential(inner), torch.nn.Linear(2, 1))
    before = inner.weight.detach().clone()
    assert init_glorot(outer) is outer
    assert not torch.equal(inner.weight, before)


def test_a_batch_norm_keeps_scale_one_and_shift_zero() -> None:
    norm = init_glorot(torch.nn.Sequential(torch.nn.BatchNorm2d(4)))[0]
    assert norm.weight.eq(1).all()
    assert norm.bias.eq(0).all()


def test_the_seed_decides() -> None:
    def made(seed: int) -> object:
        torch.manual_seed(seed)
        return init_glorot(torch.nn.Linear(4, 4)).weight

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))
