"""A row trains as the plain module does, within float error; what it cannot do is left to others, with their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from fedbalancer.core.errors import TrainingDiverged  # noqa: E402
from fedbalancer.core.types import ClientWork  # noqa: E402
from fedbalancer.data import Task  # noqa: E402
from fedbalancer.data.tasks import femnist, har  # noqa: E402
from fedbalancer.training.fast import row  # noqa: E402
from fedbalancer.training.fast.agreement import find_row_difference  # noqa: E402
from fedbalancer.training.fast.plan import make_plan  # noqa: E402
from fedbalancer.training.trainer import TorchTrainer  # noqa: E402

pytestmark = pytest.mark.skipif(row.load_kernel() is None, reason="no C compiler: layers stay torch's own")


def task_of(model: Any, shape: tuple[int, ...], classes: int, size: int = 37, **options: Any) -> Task:
    rng = np.random.default_rng(0)
    data = (rng.random((size, *shape), dtype=np.float32), rng.integers(classes, size=size))
    return Task(clients={"ann": data, "bob": data}, test=data, model=model, batch_size=10, **options)


def trained(task: Task, backend: str, batches: int = 9, batch_size: int = 10, mu: float = 0.0) -> Any:
    trainer = TorchTrainer(task, backend)
    if backend == "fast":
        assert trainer.plan is not None
        assert trainer.plan.row is not None
    work = ClientWork("ann", np.arange(task.sizes["ann"]), batches, batch_size, 0.05, mu=mu, clip_norm=None, seed=3)
    return trainer.train(trainer.initial_weights(0), work)


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("name", ["har", "femnist"])
def test_the_small_tasks_train_by_a_row_as_plain(name: str, mu: float) -> None:
    har_model = lambda: har.make_model(*har.SHAPES["small"])  # noqa: E731
    femnist_model = lambda: femnist.make_model(*femnist.SHAPES["small"])  # noqa: E731
    task = task_of(har_model, (9, 64), 6) if name == "har" else task_of(femnist_model, (1, 14, 14), 62)
    fast, plain = trained(task, "fast", mu=mu), trained(task, "plain", mu=mu)
    assert np.linalg.norm(fast.update - plain.update) < 1e-3 * np.linalg.norm(plain.update)
    assert np.allclose(fast.losses, plain.losses, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    flat=st.booleans(), filters=st.lists(st.integers(1, 20), max_size=2),
    widths=st.lists(st.integers(1, 30), max_size=2),
    relu=st.booleans(), bias=st.booleans(), batch_size=st.integers(1, 40), mu=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_rows_of_any_size_train_as_plain(
    flat: bool, filters: list[int], widths: list[int], relu: bool, bias: bool, batch_size: int, mu: float
) -> None:
    def model() -> nn.Module:
        layers: list[nn.Module] = []
        channels, side = 2, 16 if flat else 12
        for count in filters:
            layers += (
                [nn.Conv1d(channels, count, 3, padding=1, bias=bias), nn.MaxPool1d(2)] if flat
                else [nn.Conv2d(channels, count, 3, padding=1, bias=bias), nn.MaxPool2d(2)]
            )  # fmt: skip
            layers += [nn.ReLU()] if relu else []
            channels, side = count, side // 2
        layers.append(nn.Flatten())
        width = channels * side ** (1 if flat else 2)
        for out in widths:
            layers += [nn.Linear(width, out, bias=bias), *([nn.ReLU()] if relu else [])]
            width = out
        return nn.Sequential(*layers, nn.Linear(width, 4, bias=bias))

    task = task_of(model, (2, 16) if flat else (2, 12, 12), 4)
    fast, plain = (trained(task, backend, 5, batch_size, mu) for backend in ("fast", "plain"))
    far = np.linalg.norm(fast.update - plain.update)
    assert far <= 1e-2 * np.linalg.norm(plain.update) + 1e-6  # poolings that float error decides


def test_the_same_work_gives_the_same_bytes_whatever_was_trained_before() -> None:
    task = task_of(lambda: nn.Linear(5, 3), (5,), 3)
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    rows = np.arange(37)
    proximal, plain = (ClientWork("ann", rows, 8, 10, 0.1, mu=mu, clip_norm=None, seed=3) for mu in (0.5, 0.0))
    first = [trainer.train(weights, work).update for work in (plain, proximal)]
    again = [trainer.train(weights, work).update for work in (proximal, plain)]
    assert np.array_equal(first[0], again[1])
    assert np.array_equal(first[1], again[0])
    assert not np.array_equal(*first)


def test_clipping_and_other_losses_and_large_layers_are_left_to_others() -> None:
    small, sample = nn.Linear(5, 3), torch.rand(4, 5)
    assert make_plan(small, sample, "cross_entropy").row is not None
    assert make_plan(small, sample, lambda outputs, labels: outputs.sum(dim=1)).row is None
    assert make_plan(nn.Sequential(nn.Linear(5, 3), nn.Dropout()), sample, "cross_entropy").row is None
    large = nn.Sequential(nn.Flatten(), nn.Linear(1024, 128))
    assert make_plan(large, torch.rand(4, 32, 32), "cross_entropy").row is None
    assert make_plan(nn.Linear(5, 3), torch.rand(4, 2, 5), "cross_entropy").row is None
    task = task_of(lambda: nn.Linear(5, 3), (5,), 3)
    clipped = ClientWork("ann", np.arange(37), 8, 10, 1.0, mu=0.0, clip_norm=1e-3, seed=3)
    fast, plain = (TorchTrainer(task, backend) for backend in ("fast", "plain"))
    weights = plain.initial_weights(0)
    assert np.allclose(fast.train(weights, clipped).update, plain.train(weights, clipped).update, atol=1e-7)


def test_a_row_that_computes_something_else_is_found_out() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    sample = torch.rand(6, 5)
    right, wrong = row.make_row(list(module), sample), row.make_row([module[0], module[2]], sample)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    assert right is not None
    assert wrong is not None
    assert find_row_difference(module, right, sample) is None
    assert find_row_difference(module, wrong, sample) is not None
    assert all(torch.equal(one, two) for one, two in zip(before, module.parameters(), strict=True))


def test_batches_that_are_not_as_the_sample_are_not_touched() -> None:
    module = nn.Linear(5, 3)
    made = row.make_row([module], torch.rand(4, 5))
    assert made is not None
    made.begin(0.1, 0.0)
    before = module.weight.detach().clone()
    labels = torch.tensor([0, 1])
    for features, targets in (
        (torch.rand(2, 6), labels), (torch.rand(2, 5, 1), labels), (torch.rand(2, 5).double(), labels),
        (torch.rand(2, 5), labels.int()), (torch.rand(2, 5), torch.tensor([0, 3])),
        (torch.rand(2, 5), torch.tensor([0, -100])), (torch.rand(3, 5), labels), (torch.rand(0, 5), labels[:0]),
    ):  # fmt: skip
        assert made.step(features, targets) is None
    assert torch.equal(module.weight, before)
    assert made.step(torch.rand(5, 2).t(), labels) is not None  # gaps between values do no harm
    assert not torch.equal(module.weight, before)


def test_parameters_that_moved_in_memory_are_found_again() -> None:
    module = nn.Linear(5, 3)
    made = row.make_row([module], torch.rand(4, 5))
    assert made is not None
    made.begin(0.1, 0.0)
    made.step(torch.rand(2, 5), torch.tensor([0, 1]))
    old, module.weight.data = module.weight.data, module.weight.detach().clone()
    kept = old.clone()
    made.begin(0.1, 0.0)
    made.step(torch.rand(2, 5), torch.tensor([0, 1]))
    assert torch.equal(old, kept)
    assert not torch.equal(module.weight, kept)


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_what_diverges_is_told(backend: str) -> None:
    task = task_of(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,), 3)
    trainer = TorchTrainer(task, backend)
    work = ClientWork("ann", np.arange(37), 40, 10, 1e30, mu=0.0, clip_norm=None, seed=3)
    with pytest.raises(TrainingDiverged, match="lower the learning rate"):
        trainer.train(trainer.initial_weights(0), work)
