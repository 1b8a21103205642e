"""A chain trains as autograd does, to the byte; what is not a plain row of layers has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork, Weights
from fedbalancer.paper.bench.workloads import bench_task
from fedbalancer.training.fast import chain, kernels
from fedbalancer.training.fast.chain import make_chain
from fedbalancer.training.fast.plan import make_plan
from fedbalancer.training.trainer import TorchTrainer

needs_kernels = pytest.mark.skipif(kernels.load("conv") is None, reason="no C compiler: layers stay torch's own")


def updates(task: BaseTask, work: ClientWork) -> tuple[Weights, Weights, Weights]:
    """Return the results of the chain, of autograd on the same layers, and of the plain backend."""
    by_chain, by_autograd, plain = (TorchTrainer(task, backend) for backend in ("fast", "fast", "plain"))
    assert by_chain.plan is not None
    assert by_autograd.plan is not None
    assert by_chain.plan.chain is not None
    by_chain.__dict__["plan"] = replace(by_chain.plan, row=None)
    by_autograd.__dict__["plan"] = replace(by_autograd.plan, chain=None, row=None)
    weights = by_chain.initial_weights(0)
    first, second, third = (trainer.train(weights, work).update for trainer in (by_chain, by_autograd, plain))
    return first, second, third


def work_of(
    task: BaseTask, batches: int, batch_size: int, mu: float = 0.0, clip_norm: float | None = None
) -> ClientWork:
    client = next(iter(task.clients))
    rows = np.arange(task.sizes[client])
    return ClientWork(client, rows, batches, batch_size, 0.05, mu=mu, clip_norm=clip_norm, seed=3)


@needs_kernels
@pytest.mark.parametrize("name", ["femnist", "har"])
def test_the_convolutional_tasks_train_by_a_chain_as_by_autograd(name: str) -> None:
    task = bench_task(name, clients=1)
    by_chain, by_autograd, plain = updates(task, work_of(task, batches=6, batch_size=10, mu=0.1))
    assert np.array_equal(by_chain, by_autograd)
    assert np.linalg.norm(by_chain - plain) < 0.05 * np.linalg.norm(plain)  # poolings that float error decides


@settings(max_examples=25)
@given(
    widths=st.lists(st.integers(1, 40), max_size=3), batch_size=st.integers(1, 7), batches=st.integers(1, 9),
    mu=st.sampled_from([0.0, 0.3]), bias=st.booleans(),
)  # fmt: skip
def test_rows_of_dense_layers_train_as_plain(
    widths: list[int], batch_size: int, batches: int, mu: float, bias: bool
) -> None:
    def model() -> nn.Module:
        sides = [12, *widths, 3]
        layers = [layer for one, other in pairwise(sides) for layer in (nn.Linear(one, other, bias=bias), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), nn.Sequential(*layers[:-1]))

    rng = np.random.default_rng(0)
    data = (rng.normal(size=(11, 3, 4)).astype(np.float32), rng.integers(3, size=11))
    by_chain, by_autograd, plain = updates(
        BaseTask({"ann": data}, data, model), work_of(BaseTask({"ann": data}, data, model), batches, batch_size, mu)
    )
    assert np.allclose(by_chain, by_autograd, rtol=1e-5, atol=1e-7)
    assert np.allclose(by_chain, plain, rtol=1e-4, atol=1e-6)


def test_clipping_sees_all_gradients() -> None:
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(11, 12)).astype(np.float32), rng.integers(3, size=11))
    task = BaseTask({"ann": data}, data, lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)))
    by_chain, _, plain = updates(task, work_of(task, 4, 5, clip_norm=0.01))
    assert np.allclose(by_chain, plain, rtol=1e-4, atol=1e-6)


class Reused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def hooked() -> nn.Module:
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda *_: None)
    return nn.Sequential(layer)


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].weight.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "make",
    [hooked, shared, frozen, Reused, nn.Sequential,
     lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout()), lambda: nn.Sequential(nn.Linear(4, 2), Reused())],
)  # fmt: skip
def test_anything_else_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    assert make_chain(make()) is None


def test_a_dense_layer_over_more_than_two_dimensions_is_left_to_autograd() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    assert make_plan(net, torch.rand(5, 4)).chain is not None
    assert make_plan(net, torch.rand(5, 3, 4)).chain is None


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_a_chain_that_computes_something_else_is_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, sample = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.rand(5, 4)
    for parameter in net.parameters():  # no hidden unit is silent
        parameter.data.abs_()
    assert make_plan(net, sample).chain is not None
    right = getattr(chain._ReLU, wrong)
    monkeypatch.setattr(chain._ReLU, wrong, lambda *args, **options: 1.1 * right(*args, **options))
    assert make_plan(net, sample).chain is None


@needs_kernels
@pytest.mark.parametrize("name", ["femnist", "har"])
def test_a_chain_refuses_what_its_layers_refuse(name: str) -> None:
    """Larger, smaller and other samples than those it was tried on, and a gradient of another shape."""
    task = bench_task(name, clients=1)
    trainer = TorchTrainer(task)
    assert trainer.plan is not None
    row, features = trainer.plan.chain, torch.from_numpy(next(iter(task.clients.values()))[0][:6])
    assert row is not None
    for layer in trainer.plan.fused:
        layer.begin(0.1, 0.0)
    with torch.no_grad():
        for other in (nn.functional.pad(features, (0, 8)), features[..., :-8], features.long(), features.double()):
            with pytest.raises(ValueError, match="needs"):
                row(other)
        outputs = row(features)
        with pytest.raises((ValueError, RuntimeError)):
            row.backward(outputs[:-1])
