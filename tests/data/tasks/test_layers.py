"""Initial weights and language models are those of TensorFlow."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="models need the extra [torch]")

from fedbalancer.data.tasks.layers import init_glorot, make_one_bias_lstm, make_text_model  # noqa: E402
from fedbalancer.training.tensors import FlatModule  # noqa: E402


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


def test_the_constant_bias_works_like_tensorflows_forget_bias() -> None:
    ours, plain = make_one_bias_lstm(3, 4, 2, forget_bias=1.0), torch.nn.LSTM(3, 4, 2, batch_first=True)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(getattr(ours, name))
            if name.startswith("bias_hh"):
                assert parameter.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x)[0], plain(x)[0])


def test_only_one_bias_a_layer_is_trained_and_it_starts_at_zero() -> None:
    lstm = make_one_bias_lstm(3, 4, 2, forget_bias=1.0)
    biases = {name: parameter for name, parameter in lstm.named_parameters() if "bias" in name}
    assert list(biases) == ["bias_ih_l0", "bias_ih_l1"]
    assert all(not parameter.any() for parameter in biases.values())
    assert not [name for name in lstm.state_dict() if "bias_hh" in name]


def test_a_step_moves_all_parameters_and_a_load_undoes_it() -> None:
    flat = FlatModule(partial(make_text_model, symbols=7, embedding=3, hidden=4))
    start = flat.initial(0)
    flat.load(start)
    x, y = torch.arange(35).reshape(5, 7) % 7, torch.arange(5)
    before = flat.module(x)
    torch.autograd.backward(torch.nn.functional.cross_entropy(before, y))
    with torch.no_grad():
        for parameter in flat.parameters:
            assert parameter.grad is not None
            assert parameter.grad.any()
            parameter.sub_(parameter.grad)
    assert not torch.equal(flat.module(x), before)
    assert flat.module.lstm.bias_hh_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8  # type: ignore[union-attr, operator]
    flat.load(start)
    torch.testing.assert_close(flat.module(x), before, rtol=0, atol=0)
    np.testing.assert_array_equal(flat.read(), start)


@pytest.mark.parametrize(("uniform", "limit"), [(None, np.sqrt(6 / (8 + 40))), (0.1, 0.1)])
def test_weights_start_within_the_rule_and_by_the_seed(uniform: float | None, limit: float) -> None:
    flat = FlatModule(partial(make_text_model, symbols=30, embedding=8, hidden=8, uniform=uniform))
    np.testing.assert_array_equal(flat.initial(1), flat.initial(1))
    assert (flat.initial(1) != flat.initial(2)).any()
    flat.load(flat.initial(1))
    kernel = flat.module.lstm.weight_hh_l1.detach().numpy()  # type: ignore[union-attr, operator]
    assert 0.9 * limit < np.abs(kernel).max() <= limit if uniform else np.abs(kernel).max() <= np.sqrt(6 / (16 + 32))
    assert bool(flat.module.dense.bias.any()) is (uniform is not None)  # type: ignore[union-attr, operator]


def test_scores_are_of_the_last_step_or_of_every_one() -> None:
    x = torch.zeros(2, 10, dtype=torch.int64)
    assert make_text_model(symbols=7, embedding=3, hidden=4)(x).shape == (2, 7)
    assert make_text_model(symbols=7, embedding=3, hidden=4, every_step=True)(x).shape == (2, 10, 7)
