"""The FLOPs of a task's model, counted by torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedbalancer.core.cost import PUBLISHED
from fedbalancer.data import Task
from fedbalancer.data.tasks import celeba, femnist, har, reddit, shakespeare
from fedbalancer.training.flops import count_flops
from fedbalancer.training.tensors import masked_loss


def task_of(model: Callable[[], Any], x: Any, y: Any = (0, 1, 0, 1), **options: Any) -> Task:
    samples = np.asarray(x), np.asarray(y)
    return Task(clients={"ann": samples}, test=samples, model=model, **options)


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)


PAPER = {
    "femnist": task_of(femnist.make_model, floats(1, 28, 28)),
    "celeba": task_of(celeba.make_model, floats(3, 84, 84)),
    "har": task_of(har.make_model, floats(9, 128)),
    "shakespeare": task_of(shakespeare.make_model, np.ones((4, 80), np.int64)),
    "reddit": task_of(
        reddit.make_model, np.ones((4, 10), np.int64), np.ones((4, 10), np.int64),
        loss=masked_loss, metric=reddit.count_hits,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", sorted(PUBLISHED))
def test_the_published_costs_are_those_of_the_paper_s_models(row: str) -> None:
    counted, stored = count_flops(PAPER[row]), PUBLISHED[row]
    assert (counted.train_flops, counted.forward_flops) == (stored.train_flops, stored.forward_flops)


def test_the_published_batch_sizes_are_those_of_the_tasks() -> None:
    sizes = {
        name: getattr(module, "PAPER", None) or module.SETTINGS["paper"]
        for name, module in {
            "femnist": femnist, "celeba": celeba, "har": har, "reddit": reddit, "shakespeare": shakespeare,
        }.items()
    }  # fmt: skip
    assert {name: settings["batch_size"] for name, settings in sizes.items()} == {
        name: cost.batch_size for name, cost in PUBLISHED.items()
    }


def test_a_dense_layer_counts_as_its_products() -> None:
    """Forward, gradient of the weights, and from the second layer on gradient of the inputs."""
    first, second = 2 * 5 * 8, 2 * 8 * 3
    cost = count_flops(task_of(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), floats(5)))
    assert cost.forward_flops == first + second
    assert cost.train_flops == 2 * first + 3 * second


def test_frozen_layers_are_cheaper() -> None:
    def model(frozen: int) -> Any:
        layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)]
        for layer in layers[:frozen]:
            layer.requires_grad_(False)
        return nn.Sequential(*layers)

    whole, half, head = (count_flops(task_of(lambda n=n: model(n), floats(16))) for n in (0, 1, 4))  # type: ignore[misc]
    assert whole.forward_flops == half.forward_flops == head.forward_flops
    assert whole.train_flops > half.train_flops > head.train_flops > head.forward_flops


def test_recurrent_layers_are_counted_step_by_step() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
            return scores

    steps = 7
    assert count_flops(task_of(Net, floats(steps, 6))).forward_flops == steps * 2 * (6 + 8) * 32 + 2 * 8 * 2


def test_attention_is_counted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.layer(x).mean(1))
            return scores

    words = 6
    dense, attention = 2 * words * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 16 * 2, 2 * 2 * words * words * 16
    assert count_flops(task_of(Net, floats(words, 16))).forward_flops == dense + attention


def test_counting_leaves_torch_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    flags = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    count_flops(task_of(lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout()), floats(5)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()) == flags


def test_a_client_of_two_samples_is_counted_where_there_is_one() -> None:
    """A batch norm cannot train on one value."""

    def make() -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    x, y = floats(3), np.array([0, 1, 0, 1])
    both = Task(clients={"ann": (x[:1], y[:1]), "bob": (x, y)}, test=(x, y), model=make)
    alone = Task(clients={"ann": (x[:1], y[:1])}, test=(x, y), model=make)
    assert count_flops(both) == count_flops(alone)


def test_samples_of_several_columns_and_lengths_are_counted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.words(words).mean(1))
            return scores

    samples = {"words": [[1, 2], [3], [4, 5, 6], [7]]}, np.array([0, 1, 0, 1])
    task = Task(clients={"ann": samples}, test=samples, model=Net)
    assert count_flops(task).forward_flops == 2 * 4 * 2


def test_tests_of_clients_do_not_change_the_count() -> None:
    samples = np.zeros((12, 3), np.float32), np.arange(12) % 2
    task = Task(clients={"ann": samples, "bob": samples}, test=samples, model=partial(torch.nn.Linear, 3, 2))
    assert count_flops(replace(task, client_tests={"bob": samples})) == count_flops(task)


def test_an_estimate_without_torch_says_what_to_install() -> None:
    script = """
import sys
sys.modules["torch"] = None
import numpy as np
import fedbalancer as fb
samples = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
row = {"slow": (3.0, 1.0), "mid": (2.0, 1.0), "fast": (1.0, 0.1)}
for latency in ("har", row, None):
    task = fb.Task(clients={"ann": samples}, test=samples, model=object, model_bytes=100, latency=latency)
    try:
        print(len(fb.run(task, "fedavg+1t", rounds=1, timing_only=True).rounds))
    except fb.FedBalancerError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1", "1",
        "task 'custom' has no latency, and estimating it from the model's FLOPs needs PyTorch; install it with: "
        "pip install 'fedbalancer[torch]', or set latency",
    ]  # fmt: skip
