"""The rewritten module computes what the plain one computes, and is really another one where it should be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402

from fedbalancer.data.own.models import Reading, cnn2d  # noqa: E402
from fedbalancer.data.tasks import celeba, femnist, har, reddit, shakespeare, watch  # noqa: E402
from fedbalancer.training.fast import kernels, layers  # noqa: E402
from fedbalancer.training.fast.agreement import find_difference  # noqa: E402
from fedbalancer.training.fast.layers import CONV_BLOCK, DENSE, EMBEDDING, LSTM, NORM_BLOCK, WORDS  # noqa: E402
from fedbalancer.training.fast.plan import TORCH, FastPlan, make_plan  # noqa: E402
from fedbalancer.training.tensors import masked_loss  # noqa: E402

F = torch.nn.functional
needs_kernels = pytest.mark.skipif(
    any(kernels.load(name) is None for name in ("conv", "lstm")), reason=f"no kernel: {kernels.why_not('conv')}"
)


@pytest.fixture
def fuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small dense layers too take their own steps."""
    monkeypatch.setattr(layers, "FUSED_FROM", 1)


def hows(plan: FastPlan) -> dict[str, str]:
    return {layer.name: layer.how for layer in plan.layers}


SEEDED = torch.Generator().manual_seed(0)
"""By chance two values of a pooling window may be equal within rounding, which is called a disagreement."""


def tokens(count: int, *shape: int) -> Any:
    return torch.randint(count, shape, generator=SEEDED)


@needs_kernels
@pytest.mark.parametrize(
    ("make", "sample", "expected"),
    [
        (
            femnist.make_model,
            torch.rand(10, 1, 28, 28, generator=SEEDED),
            {"0": CONV_BLOCK, "3": CONV_BLOCK, "7": DENSE, "9": DENSE},
        ),
        (har.make_model, torch.randn(10, 9, 128, generator=SEEDED), {"1": CONV_BLOCK, "5": DENSE, "7": TORCH}),
        (
            celeba.make_model,
            torch.rand(4, 3, 84, 84, generator=SEEDED) * 255,
            {f"blocks.{n}": NORM_BLOCK for n in (0, 1, 4, 5, 8, 9, 12, 13)} | {"head": TORCH},
        ),
        (shakespeare.make_model, tokens(80, 4, 80), {"embedding": TORCH, "lstm": LSTM, "dense": TORCH}),
        (partial(reddit.make_model, 500), tokens(500, 4, 10), {"embedding": EMBEDDING, "lstm": LSTM, "dense": WORDS}),
        (watch.make_model, torch.randn(10, 6, 128, generator=SEEDED), {"first": TORCH, "second": TORCH, "head": TORCH}),
    ],
    ids=["femnist", "har", "celeba", "shakespeare", "reddit", "watch"],
)
def test_the_models_of_the_tasks_take_the_fast_path(
    make: Callable[[], Any], sample: Any, expected: dict[str, str]
) -> None:
    torch.manual_seed(0)
    assert hows(make_plan(make(), sample, masked_loss)) == expected


@needs_kernels
def test_the_models_for_data_of_your_own_take_it_too() -> None:
    image = Reading(shape=(12, 12), channels=1, extent=(12, 12))
    plan = make_plan(cnn2d(image, 4, 1.0, (8, 16), 3), torch.randn(5, 12, 12))
    assert [layer.how for layer in plan.layers] == [CONV_BLOCK, CONV_BLOCK, TORCH]


class Twice(nn.Module):  # type: ignore[misc]
    """A dense layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.dense(self.dense(x).tanh()))


class Tied(Twice):
    """A dense layer whose weight is also used in another way."""

    def forward(self, x: Any) -> Any:
        return self.head(F.linear(self.dense(x).tanh(), self.dense.weight.t()))


class Later(Twice):
    """A dense layer that only training uses."""

    def forward(self, x: Any) -> Any:
        return self.head(self.dense(x) if self.training else x)


class Shared(Twice):
    """Two dense layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.other.weight = self.dense.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.other(self.dense(x).tanh()))


class Wide(Twice):
    """A dense layer over the last of three dimensions."""

    def forward(self, x: Any) -> Any:
        return self.head(self.dense(x.unsqueeze(1)).flatten(1))


def frozen() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    net[0].requires_grad_(False)
    return net


def hooked() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    net[0].register_forward_hook(lambda _, __, output: output + 1)
    return net


@pytest.mark.usefixtures("fuse_all")
@pytest.mark.parametrize(
    ("make", "name", "why"),
    [
        (Twice, "dense", "not used once"), (Tied, "dense", "gradients|fails"), (Later, "dense", "not used once"),
        (Shared, "dense", "shared"), (Wide, "dense", "3 dimensions"), (frozen, "0", "not trained"),
        (hooked, "0", "hooks"),
    ],
)  # fmt: skip
def test_a_dense_layer_takes_its_own_step_only_where_that_is_the_same(
    make: Callable[[], Any], name: str, why: str
) -> None:
    module, sample = make(), torch.randn(5, 6)
    plan = make_plan(module, sample)
    found = {layer.name: layer for layer in plan.layers}
    assert found[name].how == TORCH
    assert any(word in found[name].why for word in why.split("|"))
    assert next(layer for key, layer in found.items() if key in ("head", "1")).how == DENSE
    assert find_difference(module, plan.module, plan.fused, sample) is None


class Peeks(nn.Module):  # type: ignore[misc]
    """Uses what comes out between the layers of a block, which a block does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())

    def forward(self, x: Any) -> Any:
        return self.layers(x) + self.layers[0](x).mean()


@needs_kernels
def test_a_block_that_is_looked_into_stays_as_it_was() -> None:
    module, sample = Peeks(), torch.randn(3, 1, 8, 8)
    (layer,) = make_plan(module, sample).layers
    assert layer.how == TORCH
    assert "outputs" in layer.why or "fails" in layer.why


@needs_kernels
@pytest.mark.usefixtures("fuse_all")
def test_layers_that_agree_are_kept_where_another_does_not() -> None:
    class Half(Peeks):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(36, 2)

        def forward(self, x: Any) -> Any:
            return self.head(super().forward(x))

    plan = make_plan(Half(), torch.randn(3, 1, 8, 8))
    assert hows(plan) == {"layers.0": TORCH, "head": DENSE}


class Locked(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.head, self.lock = nn.Linear(6, 2), threading.Lock()

    def forward(self, x: Any) -> Any:
        return self.head(x)


def test_a_model_that_cannot_be_copied_runs_as_it_is() -> None:
    module = Locked()
    plan = make_plan(module, torch.randn(3, 6))
    assert plan.module is module
    assert "cannot be rewritten" in plan.layers[0].why


@pytest.mark.usefixtures("fuse_all")
def test_trying_leaves_no_trace_and_parameters_are_shared() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    plan = make_plan(module, torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    assert torch.rand(1) == expected
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert {id(parameter) for parameter in plan.module.parameters()} == {id(p) for p in module.parameters()}
    assert all(parameter.grad is None for parameter in module.parameters())
    assert plan.module is not module


def test_a_wrong_module_is_found_out() -> None:
    module, sample = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(4, 6)

    class Off(nn.Module):  # type: ignore[misc]
        def __init__(self, scale: float, of_gradient: float) -> None:
            super().__init__()
            self.net, self.scale, self.of_gradient = module, scale, of_gradient

        def forward(self, x: Any) -> Any:
            outputs = self.net(x) * self.scale
            return outputs * self.of_gradient + (outputs * (1 - self.of_gradient)).detach()

    assert find_difference(module, Off(1.0, 1.0), (), sample) is None
    assert find_difference(module, Off(1.001, 1.0), (), sample) == "other outputs"
    assert find_difference(module, Off(1.0, 1.1), (), sample) == "other gradients"


def test_a_layer_says_how_it_runs_in_words() -> None:
    (layer,) = make_plan(nn.Linear(3, 2), torch.randn(4, 3)).layers
    assert str(layer) == "model (Linear): torch (it is small)"
