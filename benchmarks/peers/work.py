"""The work that every engine does: models, data, order of samples. Needs numpy and torch only, so that each engine can
read it in a virtual environment of its own.

One round is FedAvg: every client starts from the global weights, takes `epochs` epochs of plain SGD over its samples in
an order that is given, and the new global weights are the mean weighted by samples. So all engines compute the same
model, but for float error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Workload:
    """`samples` is about what a client has. Without `symbols` the features are floats, else tokens below it.

    Updates are compared at a learning rate of their own. Where there is max-pooling, .01 is too much: a maximum that
    float error decides otherwise carries the models of equal work several percent apart within an epoch, as a change of
    the weights by 1e-7 does too. Where there is none, .001 is too little: the few steps drown in the weights' last bit.
    """

    title: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    samples: int
    batch_size: int = 10
    symbols: int | None = None
    clients: int | None = None
    epochs: int | None = None
    learning_rate: float = 0.01
    check_learning_rate: float = 0.001


def femnist() -> nn.Module:
    """LEAF's CNN. Pooling comes before the ReLU: the same values, less work for everybody."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 2048),
        nn.ReLU(),
        nn.Linear(2048, 62),
    )


def conv1d(filters: int, dense: int) -> nn.Module:
    """A 1-D CNN over 128 steps of nine signals, with as many steps out of the convolution as in."""
    return nn.Sequential(
        nn.ConstantPad1d((7, 8), 0.0),
        nn.Conv1d(9, filters, 16),
        nn.MaxPool1d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters * 32, dense),
        nn.ReLU(),
        nn.Linear(dense, 6),
    )


class Characters(nn.Module):
    """The next of 80 characters: an embedding of 8, two layers of LSTM 256 wide, a dense layer on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.dense = nn.Linear(256, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.lstm(self.embedding(x))[0][:, -1])


class Block(nn.Module):
    """Two convolutions with group norms, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = normed(inputs, outputs, 3, stride), normed(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else normed(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))


def normed(inputs: int, outputs: int, size: int, stride: int) -> nn.Module:
    """A convolution and its norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.GroupNorm(8, outputs))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32 by 32, with group norms: 11.2 M weights."""
    layers, inputs = [normed(3, 64, 3, 1), nn.ReLU()], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class Adapted(nn.Module):
    """A frozen dense layer with a trained adapter of rank 4 (LoRA)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + 2 * self.up(self.down(x))


class Encoder(nn.Module):
    """A layer of BERT, frozen except for the adapters of its queries and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value = Adapted(width), Adapted(width)
        self.key, self.out = (nn.Linear(width, width).requires_grad_(False) for _ in range(2))
        self.wide = nn.Linear(width, 2 * width).requires_grad_(False)
        self.narrow = nn.Linear(2 * width, width).requires_grad_(False)
        self.norms = nn.ModuleList(nn.LayerNorm(width).requires_grad_(False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(mixed))
        return self.norms[1](x + self.narrow(nn.functional.gelu(self.wide(x))))


class SmallBert(nn.Module):
    """A BERT of two layers, 32 wide, with LoRA: 1,090 of 25,346 weights are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = (nn.Embedding(count, 32).requires_grad_(False) for count in (200, 24))
        self.layers = nn.Sequential(Encoder(32, 2), Encoder(32, 2))
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(x) + self.places.weight)[:, 0])


WORKLOADS = {
    "femnist": Workload("FEMNIST CNN, 6.6 M weights, batch 10", femnist, (1, 28, 28), 62, 180),
    "cnn1d": Workload("1-D CNN, 196 filters of 16, dense 1024, batch 10", lambda: conv1d(196, 1024), (9, 128), 6, 300),
    "har": Workload("har's model, 192 filters of 16, dense 256, batch 10", lambda: conv1d(192, 256), (9, 128), 6, 300),
    "shakespeare": Workload(
        "Shakespeare LSTM, batch 100",
        Characters,
        (80,),
        80,
        400,
        batch_size=100,
        symbols=80,
        epochs=1,
        check_learning_rate=0.1,
    ),
    "resnet18": Workload(
        "ResNet-18 with group norms, 11.2 M weights, batch 20",
        resnet18,
        (3, 32, 32),
        10,
        40,
        batch_size=20,
        epochs=1,
    ),
    "bert-lora": Workload(
        "small BERT with LoRA, 24 tokens, batch 10", SmallBert, (24,), 2, 60, symbols=200, check_learning_rate=0.1
    ),
    "tiny": Workload(
        "tiny clients: one step of 610 weights",
        lambda: nn.Linear(60, 10),
        (60,),
        10,
        10,
        batch_size=20,
        clients=100,
        epochs=1,
        check_learning_rate=0.1,
    ),
}


class Work:
    """The folder of one workload, as `prepare.py` writes it: `sizes`, `x`, `y`, `orders` (round, epoch, sample) with a
    client's samples side by side, `weights` at the start."""

    def __init__(self, folder: Path | str, name: str) -> None:
        self.folder = Path(folder) / name
        self.workload = WORKLOADS[name]
        self.sizes: list[int] = self._array("sizes").tolist()
        self.starts = [0, *np.cumsum(self.sizes).tolist()]

    def _array(self, name: str) -> Any:
        return np.load(self.folder / f"{name}.npy")

    @property
    def clients(self) -> range:
        return range(len(self.sizes))

    @cached_property
    def _data(self) -> tuple[torch.Tensor, torch.Tensor, Any]:
        return torch.from_numpy(self._array("x")), torch.from_numpy(self._array("y")), self._array("orders")

    def samples(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of a client."""
        rows = slice(self.starts[client], self.starts[client + 1])
        return self._data[0][rows], self._data[1][rows]

    def order(self, round: int, epoch: int, client: int) -> torch.Tensor:
        """In which order the client visits its samples; rounds count from 1."""
        rows = slice(self.starts[client], self.starts[client + 1])
        return torch.from_numpy(self._data[2][round - 1, epoch, rows])

    def module(self) -> nn.Module:
        """The model with the weights of the start."""
        module = self.workload.model()
        nn.utils.vector_to_parameters(torch.from_numpy(self._array("weights")), module.parameters())
        return module


def trained_mask(module: nn.Module) -> Any:
    """Whether each number of a module's vector is trained."""
    return np.concatenate([np.full(each.numel(), each.requires_grad) for each in module.parameters()])


def save_weights(module: nn.Module, path: str) -> None:
    """All parameters as one vector."""
    np.save(path, nn.utils.parameters_to_vector(module.parameters()).detach().numpy())


def orders() -> Iterator[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]]:
    """Orders from stdin, one line of JSON each, and where to send the answer: the stdout that this process began with.
    Whatever a library prints from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    answer({"ready": True})
    for line in sys.stdin:
        yield json.loads(line), answer
