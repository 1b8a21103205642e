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
