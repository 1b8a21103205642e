"""Layers that hold their gradients give the step of the plain ones, and are used only where they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402

from fedbalancer.core.types import ClientWork  # noqa: E402
from fedbalancer.data import Task  # noqa: E402
from fedbalancer.training.fast import layers  # noqa: E402
from fedbalancer.training.fast.layers import EMBEDDING, WORDS  # noqa: E402
from fedbalancer.training.fast.plan import TORCH, make_plan  # noqa: E402
from fedbalancer.training.fast.words import SparseEmbedding  # noqa: E402
from fedbalancer.training.tensors import masked_loss  # noqa: E402
from fedbalancer.training.trainer import TorchTrainer  # noqa: E402

WORD_COUNT, STEPS = 40, 6


@pytest.fixture(autouse=True)
def fuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "FUSED_FROM", 1)


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(WORD_COUNT, 16), nn.Linear(16, WORD_COUNT)

    def forward(self, x: Any) -> Any:
        return self.dense(self.embedding(x).tanh())


class Louder(Net):
    """Does something with the scores."""

    def forward(self, x: Any) -> Any:
        return 2.0 * super().forward(x)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.dense.weight = self.embedding.weight


def tokens() -> Any:
    return torch.randint(WORD_COUNT, (3, STEPS), generator=torch.Generator().manual_seed(0))


def hows(module: Any, loss: Any = masked_loss) -> list[str]:
    return [layer.how for layer in make_plan(module, tokens(), loss).layers]


def test_only_with_the_loss_it_knows_and_as_the_last_layer() -> None:
    assert hows(Net()) == [EMBEDDING, WORDS]
    assert hows(Net(), lambda outputs, labels: 1.0 * masked_loss(outputs, labels)) == [EMBEDDING, TORCH]
    assert hows(Louder()) == [EMBEDDING, TORCH]
    assert hows(Tied()) == [TORCH, TORCH]


@pytest.mark.parametrize(
    "options", [{"padding_idx": 0}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
def test_an_embedding_that_does_more_is_left_alone(options: Any) -> None:
    assert SparseEmbedding.find_obstacle(nn.Embedding(5, 4)) is None
    assert SparseEmbedding.find_obstacle(nn.Embedding(5, 4, **options)) is not None


def labels_with(share: float, count: int, rng: np.random.Generator) -> Any:
    labels = rng.integers(WORD_COUNT, size=(count, STEPS))
    labels[rng.random(labels.shape) < share] = WORD_COUNT
    return labels


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("clip_norm", [None, 0.05, 1000.0])
def test_steps_are_those_of_the_plain_backend(share: float, clip_norm: float | None) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(WORD_COUNT, size=(11, STEPS)), labels_with(share, 11, rng)
    task = Task({"ann": data}, data, Net, loss=masked_loss, metric=lambda outputs, labels: (0.0, 1.0))
    work = ClientWork("ann", np.arange(11), 6, 4, 0.5, 0.0, clip_norm, 3)
    fast, plain = (TorchTrainer(task, backend) for backend in ("fast", "plain"))
    assert fast.plan is not None
    assert len(fast.plan.held) == 2
    weights = plain.initial_weights(0)
    found, expected = fast.train(weights, work), plain.train(weights, work)
    np.testing.assert_allclose(found.update, expected.update, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5, atol=1e-6)
    assert bool(np.any(expected.update)) == (share < 1.0)


def test_a_layer_that_holds_cannot_be_used_twice() -> None:
    layer = SparseEmbedding(nn.Embedding(5, 2))
    layer.begin()
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="twice"):
        layer(torch.tensor([1]))
